#pragma once

// For tests that compare what the device computes with a reference on the host: memory that is
// poisoned before and guarded behind, and comparison to the last bit.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "cuda_host.cuh"
#include "half.h"

#define NEEDS_A_DEVICE()                                           \
  int count_ = 0;                                                  \
  if (cudaGetDeviceCount(&count_) != cudaSuccess || count_ == 0) { \
    GTEST_SKIP() << "there is no CUDA device";                     \
  }

namespace ds {

constexpr std::size_t kGuard = 64;

// A host vector's bytes on the device, `shift` elements behind an aligned address, guarded.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& host, std::size_t shift = 0)
      : size_(host.size()), shift_(shift), memory_((host.size() + shift) * sizeof(T) + kGuard) {
    check_cuda(cudaMemset(memory_.data(), 0xA5, memory_.size()), "while poisoning");
    if (!host.empty()) {
      check_cuda(cudaMemcpy(data(), host.data(), size_ * sizeof(T), cudaMemcpyHostToDevice),
                 "while copying to the device");
    }
  }
  // Poisoned.
  explicit OnDevice(std::size_t size, std::size_t shift = 0)
      : size_(size), shift_(shift), memory_((size + shift) * sizeof(T) + kGuard) {
    check_cuda(cudaMemset(memory_.data(), 0xA5, memory_.size()), "while poisoning");
  }
  T* data() const { return static_cast<T*>(memory_.data()) + shift_; }
  std::vector<T> host() const {
    std::vector<T> to(size_);
    check_cuda(cudaMemcpy(to.data(), data(), size_ * sizeof(T), cudaMemcpyDeviceToHost),
               "while copying from the device");
    std::uint8_t guard[kGuard];
    check_cuda(cudaMemcpy(guard, data() + size_, kGuard, cudaMemcpyDeviceToHost), "guard");
    for (const std::uint8_t byte : guard) EXPECT_EQ(byte, 0xA5) << "wrote behind the end";
    return to;
  }

 private:
  std::size_t size_, shift_;
  DeviceMemory memory_;
};

inline float value(float x) {
  return x;
}
inline float value(f16 x) {
  return to_float(x);
}
inline float value(bf16 x) {
  return to_float(x);
}
inline float value(std::uint8_t x) {
  return x;
}

template <class T>
void expect_same(const std::vector<T>& got, const std::vector<T>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  if (got.empty() || std::memcmp(got.data(), want.data(), got.size() * sizeof(T)) == 0) return;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &want[i], sizeof(T)) == 0) continue;
    if (std::isnan(value(got[i])) && std::isnan(value(want[i]))) continue;  // Whatever its payload.
    FAIL() << what << ": element " << i << " is " << value(got[i]) << ", should be "
           << value(want[i]);
  }
}

template <class T>
constexpr DType dtype_of() {
  return std::is_same_v<T, float> ? DType::f32 : std::is_same_v<T, f16> ? DType::f16 : DType::bf16;
}

template <class T>
std::vector<T> random_values(std::int64_t size, std::uint32_t seed, float factor = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<T> values(static_cast<std::size_t>(size));
  for (T& x : values) from_float(factor * normal(generator), x);
  return values;
}

inline std::vector<std::uint8_t> random_bytes(std::int64_t size, std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(size));
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(generator());
  return bytes;
}

}  // namespace ds

#pragma once

// For tests that compare what the CPU computes with a definition, to the last bit: values of every
// kind, and memory that is guarded behind.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "ds_types.h"
#include "half.h"

namespace ds {

template <class T>
constexpr DType dtype_of() {
  return std::is_same_v<T, float> ? DType::f32 : std::is_same_v<T, f16> ? DType::f16 : DType::bf16;
}

inline float value(float x) {
  return x;
}
template <class T>
float value(T x) {
  return to_float(x);
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

// A copy that begins `shift` elements behind an aligned address and has a guard behind.
template <class T>
class Guarded {
 public:
  explicit Guarded(const std::vector<T>& values, std::size_t shift = 0)
      : size_(values.size()),
        offset_(shift * sizeof(T)),
        bytes_(offset_ + size_ * sizeof(T) + kGuard, 0xA5) {
    if (size_ > 0) std::memcpy(data(), values.data(), size_ * sizeof(T));
  }
  T* data() { return reinterpret_cast<T*>(bytes_.data() + offset_); }

  // Fails if the guard is broken or a bit differs; a NaN is a NaN whatever its payload.
  void expect(const std::vector<T>& want, const std::string& what) {
    ASSERT_EQ(want.size(), size_);
    for (std::size_t i = bytes_.size() - kGuard; i < bytes_.size(); ++i) {
      ASSERT_EQ(bytes_[i], 0xA5) << what << ": wrote behind the end";
    }
    if (size_ == 0 || std::memcmp(data(), want.data(), size_ * sizeof(T)) == 0) return;
    for (std::size_t i = 0; i < size_; ++i) {
      if (std::memcmp(data() + i, &want[i], sizeof(T)) == 0) continue;
      if constexpr (!std::is_integral_v<T>) {
        if (std::isnan(value(data()[i])) && std::isnan(value(want[i]))) continue;
        FAIL() << what << ": element " << i << " is " << value(data()[i]) << ", should be "
               << value(want[i]);
      } else {
        FAIL() << what << ": element " << i << " is " << +data()[i] << ", should be " << +want[i];
      }
    }
  }

 private:
  static constexpr std::size_t kGuard = 64;
  std::size_t size_, offset_;
  std::vector<std::uint8_t> bytes_;
};

}  // namespace ds

#pragma once

// What the host code of the CUDA ops needs of the runtime: errors as exceptions, memory that frees
// itself, the device that a call is for, and the body of a self-test. Host code only.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ds_op.h"
#include "self_test.h"

namespace ds {

// Throws std::runtime_error that says what was being done.
inline void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  // An error that is not sticky must not be found by the next one who asks.
  cudaGetLastError();
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

// Makes `device` the current one of this thread, and puts back what was.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    check_cuda(cudaGetDevice(&before_), "while asking for the current CUDA device");
    if (device == before_) return;
    // Asked for first: a sanitizer takes a refusal of the runtime for a fault of the program.
    int devices = 0;
    check_cuda(cudaGetDeviceCount(&devices), "while counting the CUDA devices");
    check_cuda(device >= 0 && device < devices ? cudaSetDevice(device) : cudaErrorInvalidDevice,
               "while choosing the CUDA device");
    changed_ = true;
  }
  ~DeviceGuard() {
    if (changed_) cudaSetDevice(before_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

// Allocates while another stream is being captured by this thread: what happens outside the graph
// is no part of it.
class UncapturedScope {
 public:
  UncapturedScope() {
    check_cuda(cudaThreadExchangeStreamCaptureMode(&mode_), "while leaving the capture mode");
  }
  ~UncapturedScope() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  UncapturedScope(const UncapturedScope&) = delete;
  UncapturedScope& operator=(const UncapturedScope&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// Bytes on the device that was current when they were allocated.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  explicit DeviceMemory(std::size_t size) : size_(size) {
    if (size > 0) check_cuda(cudaMalloc(&data_, size), "while allocating device memory");
  }
  DeviceMemory(DeviceMemory&& other) noexcept { swap(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~DeviceMemory() {
    if (data_ != nullptr) cudaFree(data_);
  }

  void* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  void swap(DeviceMemory& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

// A buffer of the host's, copied to the device and back: for tests.
class DeviceBuffer {
 public:
  explicit DeviceBuffer(const Buffer& host) : memory_(host.byte_size()) { upload(host); }
  void* data() const { return memory_.data(); }
  void upload(const Buffer& host) {
    check_cuda(cudaMemcpy(memory_.data(), host.data(), host.byte_size(), cudaMemcpyHostToDevice),
               "while copying to the device");
  }
  // Waits for the device.
  Buffer download(DType dtype, std::int64_t size) const {
    Buffer host(dtype, size);
    check_cuda(cudaMemcpy(host.data(), memory_.data(), host.byte_size(), cudaMemcpyDeviceToHost),
               "while copying from the device");
    return host;
  }

 private:
  DeviceMemory memory_;
};

// A copy of a vector on the device, for what is tested on any device (OnHost).
template <class T>
class OnDeviceFor {
 public:
  explicit OnDeviceFor(const std::vector<T>& host)
      : size_(host.size()), memory_(host.size() * sizeof(T)) {
    check_cuda(cudaMemcpy(memory_.data(), host.data(), memory_.size(), cudaMemcpyHostToDevice),
               "while copying to the device");
  }
  T* data() const { return static_cast<T*>(memory_.data()); }
  std::vector<T> host() const {
    std::vector<T> to(size_);
    check_cuda(cudaMemcpy(to.data(), memory_.data(), memory_.size(), cudaMemcpyDeviceToHost),
               "while copying from the device");
    return to;
  }

 private:
  std::size_t size_;
  DeviceMemory memory_;
};

// The number of multiprocessors of the device; asked for once a device.
inline int multiprocessors(int device) {
  int count = 0;
  check_cuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device),
             "while asking for the number of multiprocessors");
  return count;
}

// "cuda" and "cuda:N" give a device number, anything else -1.
inline int cuda_device_number(std::string_view device) {
  if (device.substr(0, 4) != "cuda") return -1;
  if (device.size() == 4) return 0;
  if (device[4] != ':' || device.size() == 5 || device.size() > 9) return -1;
  int number = 0;
  for (const char digit : device.substr(5)) {
    if (digit < '0' || digit > '9') return -1;
    number = number * 10 + (digit - '0');
  }
  return number;
}

// The body of ds_self_test_<op> for an op that is for CUDA devices. `run(device, comparison)`
// computes a small case there and compares it with the reference; `what` says what it covered.
template <class Run>
int cuda_self_test(const char* device, char* detail, unsigned long detail_size, const char* what,
                   const Run& run) noexcept {
  const auto say = [&](const std::string& text) {
    if (detail != nullptr && detail_size > 0) {
      std::snprintf(detail, detail_size, "%s", text.c_str());
    }
  };
  try {
    const std::string name = device == nullptr || *device == '\0' ? "cuda" : device;
    const int number = cuda_device_number(name);
    if (number < 0) {
      say("has code for cuda, not for " + name);
      return DS_SELF_TEST_SKIPPED;
    }
    int count = 0;
    if (const cudaError_t status = cudaGetDeviceCount(&count);
        status != cudaSuccess || count == 0) {
      cudaGetLastError();
      say(std::string("no device: ") +
          (status == cudaSuccess ? "there is no CUDA device" : cudaGetErrorString(status)));
      return DS_SELF_TEST_SKIPPED;
    }
    if (number >= count) {
      say("no device " + name + ": there are " + std::to_string(count));
      return DS_SELF_TEST_SKIPPED;
    }
    const DeviceGuard guard(number);
    cudaDeviceProp properties{};
    check_cuda(cudaGetDeviceProperties(&properties, number), "while asking for the device's name");
    Comparison comparison;
    run(number, comparison);
    if (!comparison.ok()) {
      say(std::string(properties.name) + ": " + comparison.failure());
      return DS_SELF_TEST_WRONG;
    }
    char error[40];
    std::snprintf(error, sizeof error, "max error %.2f ulp", comparison.worst_ulp());
    say(std::string(properties.name) + " (sm_" + std::to_string(properties.major) +
        std::to_string(properties.minor) + "), " + what + ", " + error);
    return DS_SELF_TEST_OK;
  } catch (const std::exception& error) {
    say(error.what());
    return DS_SELF_TEST_WRONG;
  } catch (...) {
    say("unknown exception");
    return DS_SELF_TEST_WRONG;
  }
}

}  // namespace ds

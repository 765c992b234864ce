#pragma once

// What a call is refused for: pure functions, tested without a device.

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>

#include "quantizer.h"

namespace ds::quantizer {

[[noreturn]] inline void refuse(const char* function, const std::string& what) {
  throw std::invalid_argument(std::string("ds::") + function + ": " + what);
}

inline void check_format(const char* function, const QuantFormat& format) {
  if (format.bits != 8 && format.bits != 4) {
    refuse(function, "bits must be 8 or 4 (it is " + std::to_string(format.bits) + ")");
  }
}

inline void check_groups(const char* function, std::int64_t groups, std::int64_t group_size,
                         int bits) {
  if (groups < 0 || group_size < 0) refuse(function, "sizes must not be negative");
  if (group_size > 0 && groups > std::numeric_limits<std::int64_t>::max() / 8 / group_size) {
    refuse(function, "there are more elements than 64 bits can count");
  }
  if (bits == 4 && group_size % 2 != 0) {
    refuse(function,
           "with 4 bits two elements share a byte, so a group must be of even size (it is " +
               std::to_string(group_size) + ")");
  }
}

inline std::int64_t size_of(DType dtype) {
  return dtype == DType::f32 ? 4 : 2;
}

inline void check_pointer(const char* function, const char* name, const void* pointer,
                          std::int64_t alignment) {
  if (pointer == nullptr) refuse(function, std::string(name) + " is null");
  if (reinterpret_cast<std::uintptr_t>(pointer) % static_cast<std::uintptr_t>(alignment) != 0) {
    refuse(function, std::string(name) + " is not aligned to its elements");
  }
}

inline void check_beta(const char* function, float beta) {
  if (!(beta >= 0.0f && beta <= 1.0f)) {
    refuse(function, "error_beta must be in [0, 1] (it is " + std::to_string(beta) + ")");
  }
}

// Each check returns whether there is anything to do.

inline bool check(const QuantizeCall& c) {
  constexpr const char* kName = "quantize";
  check_format(kName, c.format);
  check_groups(kName, c.groups, c.group_size, c.format.bits);
  const Swizzle& s = c.swizzle;
  if (s.pipeline < 1 || s.nodes < 1 || s.devices < 1) {
    refuse(kName, "pipeline, nodes and devices must be at least 1");
  }
  const std::int64_t parts = s.pipeline * s.nodes * s.devices;
  if (c.groups % parts != 0) {
    refuse(kName, std::to_string(c.groups) + " groups do not make " + std::to_string(s.pipeline) +
                      " slices of " + std::to_string(s.nodes) + "·" + std::to_string(s.devices) +
                      " equal partitions");
  }
  if (c.error != nullptr) check_beta(kName, c.error_beta);
  if (c.groups == 0 || c.group_size == 0) return false;
  check_pointer(kName, "input", c.input, size_of(c.dtype));
  check_pointer(kName, "codes", c.codes, 1);
  check_pointer(kName, "params", c.params, 4);
  if (c.error != nullptr) check_pointer(kName, "error", c.error, size_of(c.dtype));
  return true;
}

inline bool check(const DequantizeCall& c) {
  constexpr const char* kName = "dequantize";
  check_format(kName, c.format);
  check_groups(kName, c.groups, c.group_size, c.format.bits);
  if (c.groups == 0 || c.group_size == 0) return false;
  check_pointer(kName, "codes", c.codes, 1);
  check_pointer(kName, "params", c.params, c.format.symmetric ? 4 : 8);
  check_pointer(kName, "output", c.output, size_of(c.dtype));
  return true;
}

inline bool check(const FakeQuantizeCall& c) {
  constexpr const char* kName = "fake_quantize";
  if (c.bits < 2 || c.bits > 16) {
    refuse(kName, "bits must be from 2 to 16 (it is " + std::to_string(c.bits) + ")");
  }
  check_groups(kName, c.groups, c.group_size, 8);
  if (c.groups == 0 || c.group_size == 0) return false;
  check_pointer(kName, "values", c.values, size_of(c.dtype));
  return true;
}

inline bool check(const ReduceCall& c) {
  constexpr const char* kName = "quantized_reduce";
  check_format(kName, c.format);
  if (c.tensors < 1) refuse(kName, "there must be at least one tensor");
  if (c.size < 0 || c.in_groups < 0 || c.out_groups < 0) {
    refuse(kName, "sizes must not be negative");
  }
  if (c.error != nullptr) check_beta(kName, c.error_beta);
  if (c.size == 0) return false;
  const auto whole = [&](const char* name, std::int64_t groups) {
    if (groups == 0 || c.size % groups != 0) {
      refuse(kName, std::to_string(c.size) + " elements do not make " + std::to_string(groups) +
                        " " + name + " of equal size");
    }
    check_groups(kName, groups * c.tensors, c.size / groups, c.format.bits);
  };
  whole("in_groups", c.in_groups);
  whole("out_groups", c.out_groups);
  check_pointer(kName, "codes", c.codes, 1);
  check_pointer(kName, "params", c.params, 4);
  check_pointer(kName, "out_codes", c.out_codes, 1);
  check_pointer(kName, "out_params", c.out_params, 4);
  if (c.error != nullptr) check_pointer(kName, "error", c.error, size_of(c.error_dtype));
  return true;
}

inline bool check(const IntToHalfCall& c) {
  constexpr const char* kName = "int_to_half";
  check_format(kName, {c.bits, true});
  check_groups(kName, c.groups, c.group_size, c.bits);
  if (c.groups == 0 || c.group_size == 0) return false;
  check_pointer(kName, "codes", c.codes, 1);
  check_pointer(kName, "scales", c.scales, 2);
  check_pointer(kName, "minimums", c.minimums, 2);
  check_pointer(kName, "output", c.output, 2);
  return true;
}

}  // namespace ds::quantizer

#pragma once

// What a call is refused for: pure functions, tested without a device.

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>

#include "fp_quantizer.h"

namespace ds::fp_quantizer {

[[noreturn]] inline void refuse(const char* function, const std::string& what) {
  throw std::invalid_argument(std::string("ds::") + function + ": " + what);
}

inline void check_format(const char* function, const FloatFormat& f) {
  constexpr FloatFormat kKnown[] = {{12, 7}, {8, 3}, {8, 2}, {6, 2}, {4, 1}};
  for (const FloatFormat& known : kKnown) {
    if (f.bits == known.bits && f.mantissa == known.mantissa) return;
  }
  refuse(function, "there is no format of " + std::to_string(f.bits) + " bits with " +
                       std::to_string(f.mantissa) +
                       " of mantissa; there are 12 with 7, 8 with 3 or 2, 6 with 2, 4 with 1");
}

inline void check_groups(const char* function, std::int64_t groups, std::int64_t group_size,
                         const FloatFormat& f) {
  if (groups < 0 || group_size < 0) refuse(function, "sizes must not be negative");
  if (group_size > 0 && groups > std::numeric_limits<std::int64_t>::max() / 16 / group_size) {
    refuse(function, "there are more elements than 64 bits can count");
  }
  if (group_size % 8 * f.bits % 8 != 0) {
    refuse(function, "a group of " + std::to_string(group_size) + " codes of " +
                         std::to_string(f.bits) + " bits does not end on a byte");
  }
}

inline void check_pointer(const char* function, const char* name, const void* pointer,
                          std::uintptr_t alignment) {
  if (pointer == nullptr) refuse(function, std::string(name) + " is null");
  if (reinterpret_cast<std::uintptr_t>(pointer) % alignment != 0) {
    refuse(function, std::string(name) + " is not aligned to its elements");
  }
}

inline std::uintptr_t size_of(DType dtype) {
  return dtype == DType::f32 ? 4 : 2;
}

// Each check returns whether there is anything to do.

inline bool check(const FpQuantizeCall& c) {
  constexpr const char* kName = "fp_quantize";
  check_format(kName, c.format);
  check_groups(kName, c.groups, c.group_size, c.format);
  if (c.groups == 0 || c.group_size == 0) return false;
  check_pointer(kName, "input", c.input, size_of(c.dtype));
  check_pointer(kName, "rows", c.rows, 1);
  return true;
}

inline bool check(const FpDequantizeCall& c) {
  constexpr const char* kName = "fp_dequantize";
  check_format(kName, c.format);
  check_groups(kName, c.groups, c.group_size, c.format);
  if (c.indexes != nullptr) {
    if (c.index_count < 0) refuse(kName, "sizes must not be negative");
    if (c.groups_an_index < 1 || c.groups % c.groups_an_index != 0) {
      refuse(kName, std::to_string(c.groups) + " groups do not make slabs of " +
                        std::to_string(c.groups_an_index));
    }
    if (c.index_count == 0) return false;
    check_groups(kName, c.index_count * c.groups_an_index, c.group_size, c.format);
  } else if (c.groups == 0) {
    return false;
  }
  if (c.group_size == 0) return false;
  if (c.groups > 0) check_pointer(kName, "rows", c.rows, 1);
  check_pointer(kName, "output", c.output, size_of(c.dtype));
  return true;
}

}  // namespace ds::fp_quantizer

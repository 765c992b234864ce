#pragma once

// What a call is refused for.

#include <cstdint>
#include <stdexcept>
#include <string>

#include "spatial_inference.h"

namespace ds::spatial_inference {

constexpr const char* kName = "ds::spatial_inference_add";

// Whether there is anything to do.
inline bool check(const SpatialInferenceSum& sum) {
  const auto refuse = [](const std::string& what) {
    throw std::invalid_argument(std::string(kName) + ": " + what);
  };
  if (sum.dtype > DType::bf16) refuse("unknown dtype");
  if (sum.pixels < 0 || sum.channels < 0) refuse("a size is negative");
  if (sum.other_bias != nullptr && sum.other == nullptr) {
    refuse("other_bias stands without other");
  }
  if (sum.pixels == 0 || sum.channels == 0) return false;
  if (sum.channels > (std::int64_t{1} << 40) / sum.pixels) refuse("more than 2^40 elements");
  for (const void* data : {sum.x, sum.bias, static_cast<const void*>(sum.out)}) {
    if (data == nullptr) refuse("x, bias or out is null");
  }
  for (const void* data :
       {sum.x, sum.bias, sum.other, sum.other_bias, static_cast<const void*>(sum.out)}) {
    if (reinterpret_cast<std::uintptr_t>(data) % (sum.dtype == DType::f32 ? 4 : 2) != 0) {
      refuse("a pointer is not aligned to its elements");
    }
  }
  return true;
}

}  // namespace ds::spatial_inference

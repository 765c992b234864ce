#pragma once

// What a code path of the CPU offers to the host code of the op, for one format: functions for runs
// of elements of one group, whose codes begin on a byte.

#include <cstdint>

#include "cpu_groups.h"
#include "fp_quantizer.h"

namespace ds::fp_quantizer {

struct EncodeRun {
  const void* x;
  std::int64_t size;
  std::uint64_t first;  // Of the tensor's elements.
  float factor;
  bool stochastic;
  std::uint64_t seed, offset;
  std::uint8_t* codes;
};

// By DType: f32, f16, bf16.
struct CpuKernels {
  void (*see[3])(const void* x, std::int64_t size, Seen& seen);  // Adds what is in x.
  void (*encode[3])(const EncodeRun& run);
  void (*decode[3])(const std::uint8_t* codes, float scale, std::int64_t size, void* output);
};

}  // namespace ds::fp_quantizer

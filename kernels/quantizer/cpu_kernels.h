#pragma once

// What a code path of the CPU offers to the host code of the op: functions for runs of elements of
// one group, which begin at an even element.

#include <cstdint>

#include "cpu_groups.h"
#include "half.h"
#include "philox.h"
#include "quantizer.h"
#include "reference.h"

namespace ds::quantizer {

// How the numbers of a group become codes and come back. Symmetric: an offset of 0, which changes
// no bit, because no code is -0.
struct Rounding {
  reference::GroupParams params;
  float lowest, highest;  // Codes.
  int bits;
};

// x and error: the numbers are their sums. error: none, or updated with what is lost (quantizer.h).
struct EncodeRun {
  const void* x;
  void* error;
  float beta;
  std::int64_t size;
  std::uint8_t* codes;
};

struct FakeRun {
  void* values;
  std::int64_t size;
  std::uint64_t first;  // Of the tensor's elements.
  bool stochastic;
  std::uint64_t seed, offset;
};

struct DecodeRun {
  const std::uint8_t* codes;
  int bits;
  float inverse, offset;
  std::int64_t size;
};

// By DType: f32, f16, bf16.
struct CpuKernels {
  // Adds what is in x, or in x + error of the same type.
  void (*see[3])(const void* x, const void* error, std::int64_t size, Seen& seen);
  void (*encode[3])(const EncodeRun& run, const Rounding& rounding);
  // The same of sums in f32 that the error, of the type, is part of.
  void (*encode_sums[3])(const EncodeRun& run, const Rounding& rounding);
  void (*decode[3])(const DecodeRun& run, void* output);
  void (*fake[3])(const FakeRun& run, const Rounding& rounding);
  // sums[i] = fma(code, inverse, sums[i]), or sums[i] + fma(code, inverse, offset).
  void (*sum)(const DecodeRun& run, bool symmetric, float* sums);
  void (*add[3])(const void* error, std::int64_t size, float* sums);
  // Codes without a sign.
  void (*to_half)(const std::uint8_t* codes, int bits, f16 scale, f16 minimum, std::int64_t size,
                  std::uint16_t* output);
};

}  // namespace ds::quantizer

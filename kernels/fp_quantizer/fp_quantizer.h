#pragma once

// Quantization to small floating-point formats in groups, on the CPU or a GPU. No torch.
//
//   bits  mantissa  exponent  bias  largest
//    12      7         4        7      510
//     8      3         4        7      480
//     8      2         5       15   114688
//     6      2         3        3       28
//     4      1         2        1        6
//
// Sign, exponent, mantissa, as in IEEE 754 with subnormal numbers, but every code is a number:
// there is no infinity and no NaN, so the largest exponent counts too. Rounded to nearest even, or
// stochastically: down at |y| + u·ulp, u uniform in {0, 1, …, 65535}/65536, so away from zero in
// proportion.
//
// A group is a row of bytes: its codes, the first in the lowest bits, then its scale, an f32, at
// any alignment; group_size·bits must be a multiple of 8.
//
//   scale = max|x| / largest,   code = round(x · (largest / max|x|)),   x' = code · scale
//
// A NaN or an infinity in a group makes its scale NaN or infinite and its codes 0, so all of it
// comes back as NaN.
//
// reference.h defines every result to the last bit, on either device, on every code path and with
// any number of threads. Memory is that of the device that computes. Launches on a GPU go to
// `stream` on the current device and return at once; they can be captured in a CUDA graph.
// std::invalid_argument, before anything is written, for what does not fit; std::runtime_error for
// what the device refuses. The overloads for a stream are in a library that was built with CUDA.

#include <cstdint>

#include "ds_op.h"
#include "ds_types.h"
#include "philox.h"

namespace ds {

struct FloatFormat {
  int bits = 8;
  int mantissa = 3;
};

struct FpQuantizeCall {
  const void* input = nullptr;
  DType dtype = DType::bf16;
  std::int64_t groups = 0;
  std::int64_t group_size = 0;
  FloatFormat format;
  bool stochastic = false;
  RandomSource random;
  std::uint8_t* rows = nullptr;  // groups rows of fp_row_bytes().
};
DS_EXPORT void fp_quantize(const FpQuantizeCall& call, const CpuOptions& cpu);
DS_EXPORT void fp_quantize(const FpQuantizeCall& call, void* stream);

// Of one group: codes and scale.
inline std::int64_t fp_row_bytes(std::int64_t group_size, const FloatFormat& format) {
  return group_size * format.bits / 8 + 4;
}

struct FpDequantizeCall {
  const std::uint8_t* rows = nullptr;
  void* output = nullptr;
  DType dtype = DType::bf16;
  std::int64_t groups = 0;  // Of the rows.
  std::int64_t group_size = 0;
  FloatFormat format;
  // Selection: the rows are groups/groups_an_index slabs, and the output is slab indexes[0],
  // indexes[1], …. An index that is out of range gives NaN. Null: all rows in order.
  const std::int32_t* indexes = nullptr;  // Where the op computes.
  std::int64_t index_count = 0;
  std::int64_t groups_an_index = 1;
};
DS_EXPORT void fp_dequantize(const FpDequantizeCall& call, const CpuOptions& cpu);
DS_EXPORT void fp_dequantize(const FpDequantizeCall& call, void* stream);

}  // namespace ds

extern "C" DS_EXPORT int ds_self_test_fp_quantizer(const char* device, char* detail,
                                                   unsigned long detail_size);

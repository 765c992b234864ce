#pragma once

// Quantization to 8 and 4 bit integers in groups, and what collectives need of it: swizzled output,
// reduction of quantized tensors, error feedback. On the CPU or a GPU. No torch.
//
// A tensor is `groups` runs of `group_size` consecutive elements. With b bits, codes run from
// -2^(b-1) to 2^(b-1)-1 and are rounded to nearest even:
//
//   symmetric:   scale = 2^(b-1) / max|x|,       code = clamp(round(x·scale)),
//                x' = code·inverse                                 params[g] = {inverse}
//   asymmetric:  scale = 2^b / (max - min),      code = clamp(round((x - offset)·scale)),
//                offset = max/2 + min/2
//                x' = code·inverse + offset                        params[g] = {inverse, offset}
//
// inverse = 1/scale; a group whose scale would be infinite (all zero, or all alike) has scale 1.
// Arithmetic is in float, every operation rounded by itself. A NaN or an infinity in a group makes
// its inverse NaN or infinite, so the group cannot come back looking like numbers. With 4 bits,
// two codes share a byte, the first in the upper half, and a group must be of even size.
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

struct QuantFormat {
  int bits = 8;  // 8 or 4.
  bool symmetric = true;
};

// Where a group goes: the tensor is nodes·devices partitions of equal size, each cut into
// `pipeline` slices. Output is ordered by slice, then by partition, where partition p comes to (p %
// devices)·nodes + p / devices: what one device of each node exchanges lies together.
struct Swizzle {
  std::int64_t pipeline = 1;
  std::int64_t nodes = 1;
  std::int64_t devices = 1;
};

struct QuantizeCall {
  const void* input = nullptr;  // groups·group_size elements.
  DType dtype = DType::f32;
  std::int64_t groups = 0;
  std::int64_t group_size = 0;
  QuantFormat format;
  std::uint8_t* codes = nullptr;  // groups·group_size·bits/8 bytes.
  float* params = nullptr;        // groups, or 2·groups floats.
  Swizzle swizzle;
  // Error feedback (LoCo), in the order of the output, of the input's dtype; null: none. What is
  // quantized is s = x + error, and error becomes beta·error + (1 - beta)·(s - s').
  void* error = nullptr;
  float error_beta = 0.0f;
};
DS_EXPORT void quantize(const QuantizeCall& call, const CpuOptions& cpu);
DS_EXPORT void quantize(const QuantizeCall& call, void* stream);

struct DequantizeCall {
  const std::uint8_t* codes = nullptr;
  const float* params = nullptr;
  void* output = nullptr;
  DType dtype = DType::f32;
  std::int64_t groups = 0;
  std::int64_t group_size = 0;
  QuantFormat format;
};
DS_EXPORT void dequantize(const DequantizeCall& call, const CpuOptions& cpu);
DS_EXPORT void dequantize(const DequantizeCall& call, void* stream);

// x becomes x', in place: what quantizing to `bits` (2 to 16) and back gives. Stochastic: instead
// of to nearest, rounds down y + u with u uniform in {0, 1, …, 65535}/65536.
struct FakeQuantizeCall {
  void* values = nullptr;
  DType dtype = DType::f32;
  std::int64_t groups = 0;
  std::int64_t group_size = 0;
  int bits = 8;
  bool symmetric = true;
  bool stochastic = false;
  RandomSource random;
  // On a GPU: 2·groups words of its memory, needed where fake_quantize_needs_scratch() says so.
  std::uint32_t* scratch = nullptr;
};
DS_EXPORT bool fake_quantize_needs_scratch(const FakeQuantizeCall& call);
DS_EXPORT void fake_quantize(const FakeQuantizeCall& call, const CpuOptions& cpu);
DS_EXPORT void fake_quantize(const FakeQuantizeCall& call, void* stream);

// The sum of `tensors` quantized tensors of `size` elements each, which lie one behind the other,
// quantized again. Sums are in float, in the order of the tensors: sum = fma(code, inverse, sum),
// or sum += fma(code, inverse, offset).
struct ReduceCall {
  const std::uint8_t* codes = nullptr;  // tensors·size·bits/8 bytes.
  const float* params = nullptr;        // Of tensors·in_groups groups.
  std::int64_t tensors = 1;
  std::int64_t size = 0;
  std::int64_t in_groups = 0;   // Of each tensor.
  std::int64_t out_groups = 0;  // Of the result.
  QuantFormat format;
  std::uint8_t* out_codes = nullptr;  // size·bits/8 bytes.
  float* out_params = nullptr;
  void* error = nullptr;  // `size` elements, or null: as in QuantizeCall.
  DType error_dtype = DType::f16;
  float error_beta = 0.0f;
};
DS_EXPORT void quantized_reduce(const ReduceCall& call, const CpuOptions& cpu);
DS_EXPORT void quantized_reduce(const ReduceCall& call, void* stream);

// Unsigned codes of 8 or 4 bits to f16: code / scale + minimum, both operations rounded to f16.
struct IntToHalfCall {
  const std::uint8_t* codes = nullptr;
  const std::uint16_t* scales = nullptr;    // f16, one a group.
  const std::uint16_t* minimums = nullptr;  // f16, one a group.
  std::uint16_t* output = nullptr;          // f16.
  std::int64_t groups = 0;
  std::int64_t group_size = 0;
  int bits = 8;
};
DS_EXPORT void int_to_half(const IntToHalfCall& call, const CpuOptions& cpu);
DS_EXPORT void int_to_half(const IntToHalfCall& call, void* stream);

}  // namespace ds

extern "C" DS_EXPORT int ds_self_test_quantizer(const char* device, char* detail,
                                                unsigned long detail_size);

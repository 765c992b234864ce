#pragma once

// Lion on a GPU, in place, over a list of tensors. No torch, no CUDA header.

#include <cstddef>
#include <cstdint>

#include "ds_op.h"
#include "ds_types.h"

namespace ds {

// One parameter and what belongs to it: runs of `size` elements in device memory, in the same
// order.
struct FusedLionTensor {
  void* param;        // Read and written.
  const void* grad;   // Read.
  void* exp_avg;      // m, read and written; zero before the first step.
  void* copy;         // Written: the new parameter in 16 bits, rounded once. May be null.
  std::int64_t size;  // May be 0.
  DType param_dtype = DType::f32;
  DType grad_dtype = DType::f32;
  DType state_dtype = DType::f32;  // f32, or as the parameter; any for an f32 parameter.
  DType copy_dtype = DType::bf16;  // Or f16.
};

struct FusedLionOptions {
  static constexpr bool kHasStep = false;
  double lr = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0.0;
};

//   g  = g/scale, times max_norm/(norm + 1e-6) if the norm is larger than max_norm
//   c  = beta1·m + (1 - beta1)·g
//   p -= lr·weight_decay·p
//   p -= lr·sign(c)                 sign(0) = 0: what has no gradient and no momentum stays put;
//                                   sign(NaN) = NaN: a bad gradient is not hidden
//   m  = beta2·m + (1 - beta2)·g
//
// One launch for all tensors of the same types, and a second, of one thread, if a number lies on
// the device. The same bits in every run and on every architecture; with the same numbers from the
// host the bits of cpu_lion_step. The list is kept in device memory and copied there only if it
// changed; a CUDA graph may capture the step. Throws std::invalid_argument, before anything is
// launched, for options out of range, null or misaligned pointers, and memory that stands in the
// lists twice and is written, and std::runtime_error if CUDA fails. Any thread may call it.
DS_EXPORT void fused_lion_step(const FusedLionTensor* tensors, std::size_t count,
                               const FusedLionOptions& options,
                               const GradientOptions& gradients = {},
                               const OptimizerScalars& scalars = {}, const CudaOptions& cuda = {});

}  // namespace ds

extern "C" DS_EXPORT int ds_self_test_fused_lion(const char* device, char* detail,
                                                 unsigned long detail_size);

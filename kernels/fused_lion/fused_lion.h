#pragma once

// Lion, in place, over a list of tensors, on the CPU or a GPU. No torch, no CUDA header.

#include <cstddef>
#include <cstdint>

#include "ds_op.h"
#include "ds_types.h"

namespace ds {

// One parameter and what belongs to it: runs of `size` elements in one order, in the memory of the
// device that computes.
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
// `scalars` lie where the tensors do. Throws std::invalid_argument, before anything is written, for
// options out of range, null or misaligned pointers, and memory that stands in the lists twice and
// is written. The caller keeps the memory alive and untouched by others until the step is done.
//
// On the CPU the result does not depend on the number of threads nor on the code path, to the last
// bit; denormals count, and rounding is to nearest even.
DS_EXPORT void fused_lion_step(const FusedLionTensor* tensors, std::size_t count,
                               const FusedLionOptions& options, const GradientOptions& gradients,
                               const OptimizerScalars& scalars, const CpuOptions& cpu);

// On a GPU, in a library that was built with CUDA: one launch for all tensors of the same types,
// and a second, of one thread, if a number lies on the device. The same bits in every run and on
// every architecture; with the same numbers from the host the bits of the CPU. The list is kept in
// device memory and copied there only if it changed; a CUDA graph may capture the step. Throws
// std::runtime_error if CUDA fails. Any thread may call it.
DS_EXPORT void fused_lion_step(const FusedLionTensor* tensors, std::size_t count,
                               const FusedLionOptions& options,
                               const GradientOptions& gradients = {},
                               const OptimizerScalars& scalars = {}, const CudaOptions& cuda = {});

}  // namespace ds

extern "C" DS_EXPORT int ds_self_test_fused_lion(const char* device, char* detail,
                                                 unsigned long detail_size);

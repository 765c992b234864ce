#pragma once

// Adam and AdamW, in place, over a list of tensors, on the CPU or a GPU. No torch, no CUDA header.

#include <cstddef>
#include <cstdint>

#include "ds_op.h"
#include "ds_types.h"

namespace ds {

// One parameter and what belongs to it: runs of `size` elements in one order, in the memory of the
// device that computes.
struct FusedAdamTensor {
  void* param;        // Read and written.
  const void* grad;   // Read.
  void* exp_avg;      // m, read and written; zero before the first step.
  void* exp_avg_sq;   // v, read and written; zero before the first step.
  void* copy;         // Written: the new parameter in 16 bits, rounded once. May be null.
  std::int64_t size;  // May be 0.
  DType param_dtype = DType::f32;
  DType grad_dtype = DType::f32;
  DType state_dtype = DType::f32;  // f32, or as the parameter; any for an f32 parameter.
  DType copy_dtype = DType::bf16;  // Or f16.
};

// In double: 1 - 0.999f is off by 1.3e-5 and every step would inherit that.
struct FusedAdamOptions {
  static constexpr bool kHasStep = true;
  std::int64_t step = 1;  // Of this update: 1, 2, 3, …
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  bool adamw = true;            // Decay the parameter itself; false: add weight_decay·p to g.
  bool bias_correction = true;  // Divide m and v by 1 - beta^step.
};

//   g  = g/scale, times max_norm/(norm + 1e-6) if the norm is larger than max_norm
//   g += weight_decay·p                          (not adamw)
//   m  = beta1·m + (1 - beta1)·g
//   v  = beta2·v + (1 - beta2)·g²
//   p -= lr·weight_decay·p                       (adamw)
//   p -= lr/(1 - beta1^step) · m / (√v/√(1 - beta2^step) + eps)
//
// `scalars` lie where the tensors do. Throws std::invalid_argument, before anything is written, for
// options out of range, null or misaligned pointers, and memory that stands in the lists twice and
// is written. The caller keeps the memory alive and untouched by others until the step is done.
//
// On the CPU the result does not depend on the number of threads nor on the code path, to the last
// bit; denormals count, and rounding is to nearest even.
DS_EXPORT void fused_adam_step(const FusedAdamTensor* tensors, std::size_t count,
                               const FusedAdamOptions& options, const GradientOptions& gradients,
                               const OptimizerScalars& scalars, const CpuOptions& cpu);

// On a GPU, in a library that was built with CUDA: one launch for all tensors of the same types,
// and a second, of one thread, if a number lies on the device. The same bits in every run and on
// every architecture; with the same numbers from the host the bits of the CPU. The list is kept in
// device memory and copied there only if it changed; a CUDA graph may capture the step. Throws
// std::runtime_error if CUDA fails. Any thread may call it.
DS_EXPORT void fused_adam_step(const FusedAdamTensor* tensors, std::size_t count,
                               const FusedAdamOptions& options,
                               const GradientOptions& gradients = {},
                               const OptimizerScalars& scalars = {}, const CudaOptions& cuda = {});

}  // namespace ds

extern "C" DS_EXPORT int ds_self_test_fused_adam(const char* device, char* detail,
                                                 unsigned long detail_size);

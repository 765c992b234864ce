#pragma once

// LAMB, in place, over a list of tensors, on the CPU or a GPU. No torch, no CUDA header.

#include <cstddef>
#include <cstdint>

#include "ds_op.h"
#include "ds_types.h"

namespace ds {

// One parameter and what belongs to it: runs of `size` elements in one order, in the memory of the
// device that computes.
struct FusedLambTensor {
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

struct FusedLambOptions {
  static constexpr bool kHasStep = true;
  std::int64_t step = 1;  // Of this update: 1, 2, 3, …
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  double min_ratio = 0.01;  // The trust ratio is kept in between.
  double max_ratio = 10.0;
  bool bias_correction = true;   // Divide m and v by 1 - beta^step.
  bool eps_inside_sqrt = false;  // √(v + eps) instead of √v + eps, after that division.
};

//   g  = g/scale, times max_norm/(norm + 1e-6) if the norm is larger than max_norm
//   m  = beta1·m + (1 - beta1)·g
//   v  = beta2·v + (1 - beta2)·g²
//   u  = m/(1 - beta1^step) / (√v/√(1 - beta2^step) + eps) + weight_decay·p
//   r  = ‖p‖/‖u‖ over the tensor, kept in [min_ratio, max_ratio]; 1 if either norm is 0
//   p -= lr·r·u
//
// m and v count as they are stored, so with states of 16 bits u is made of rounded ones.
//
// `scalars` lie where the tensors do. Throws std::invalid_argument, before anything is written, for
// options out of range, null or misaligned pointers, and memory that stands in the lists twice and
// is written. The caller keeps the memory alive and untouched by others until the step is done.
//
// `trust_ratios`, if not null, receives r of each tensor, as `count` floats where the tensors are;
// that of an empty tensor, and all of them in a skipped step, are left as they were.
//
// On the CPU the result does not depend on the number of threads nor on the code path, to the last
// bit; denormals count, and rounding is to nearest even.
DS_EXPORT void fused_lamb_step(const FusedLambTensor* tensors, std::size_t count,
                               const FusedLambOptions& options, const GradientOptions& gradients,
                               const OptimizerScalars& scalars, float* trust_ratios,
                               const CpuOptions& cpu);

// On a GPU, in a library that was built with CUDA: one launch for all tensors of the same types,
// after one that resets its counters, and one of a single thread if a number lies on the device.
// The same bits in every run. The list is kept in device memory and copied there only if it
// changed; a CUDA graph may capture the step. Throws std::runtime_error if CUDA fails. Any thread
// may call it.
DS_EXPORT void fused_lamb_step(const FusedLambTensor* tensors, std::size_t count,
                               const FusedLambOptions& options,
                               const GradientOptions& gradients = {},
                               const OptimizerScalars& scalars = {}, float* trust_ratios = nullptr,
                               const CudaOptions& cuda = {});

}  // namespace ds

extern "C" DS_EXPORT int ds_self_test_fused_lamb(const char* device, char* detail,
                                                 unsigned long detail_size);

#pragma once

// Adam and AdamW on the CPU, in place, over a list of tensors. No torch.

#include <cstddef>
#include <cstdint>

#include "ds_op.h"
#include "ds_types.h"

namespace ds {

// One parameter and what belongs to it: four runs of `size` elements in the same order.
struct AdamTensor {
  void* param;       // Read and written.
  const void* grad;  // Read.
  void* exp_avg;     // m, read and written; zero before the first step.
  void* exp_avg_sq;  // v, read and written; zero before the first step.
  std::int64_t size;
  DType param_dtype = DType::f32;
  DType grad_dtype = DType::f32;
  DType state_dtype = DType::f32;  // Of both: f32, or as the parameter; any for an f32 parameter.
  DType copy_dtype = DType::bf16;  // Or f16.
  void* copy = nullptr;            // Written: the new parameter in 16 bits, rounded once; or null.
};

// In double: 1 - 0.999f is off by 1.3e-5 and every step would inherit that.
struct AdamOptions {
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
// The result does not depend on the number of threads nor on the code path, to the last bit. Empty
// tensors and an empty list are allowed. Throws std::invalid_argument, before anything is written,
// for options out of range, null or misaligned pointers, and memory that stands in the lists twice
// and is written. The caller keeps the memory alive and untouched by others until it returns.
DS_EXPORT void cpu_adam_step(const AdamTensor* tensors, std::size_t count,
                             const AdamOptions& options, const CpuOptions& cpu = {},
                             const GradientOptions& gradients = {},
                             const OptimizerScalars& scalars = {});

// Undoes the step that was made with the same gradients and options: for training that notices too
// late that a gradient was not finite or had to be clipped. What rounding took does not come back:
// f32 values return to within a few ulp of the largest term that went into them (over beta1,
// beta2), 16-bit ones to within an ulp of the type. Refused where the step cannot be undone: a beta
// of 0 forgets the old state, and lr·weight_decay of 1 the old parameter.
DS_EXPORT void cpu_adam_rollback(const AdamTensor* tensors, std::size_t count,
                                 const AdamOptions& options, const CpuOptions& cpu = {},
                                 const GradientOptions& gradients = {});

}  // namespace ds

extern "C" DS_EXPORT int ds_self_test_cpu_adam(const char* device, char* detail,
                                               unsigned long detail_size);

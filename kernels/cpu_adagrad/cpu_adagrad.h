#pragma once

// Adagrad on the CPU, in place, over a list of tensors. No torch.

#include <cstddef>
#include <cstdint>

#include "ds_op.h"
#include "ds_types.h"

namespace ds {

// One parameter and what belongs to it: three runs of `size` elements in the same order.
struct AdagradTensor {
  void* param;       // Read and written.
  const void* grad;  // Read.
  void* exp_avg_sq;  // The sum of the squared gradients, read and written. (Its usual name here,
                     // though nothing decays it.)
  std::int64_t size;
  DType param_dtype = DType::f32;
  DType grad_dtype = DType::f32;
  DType state_dtype = DType::f32;  // f32, or as the parameter; any for an f32 parameter.
  DType copy_dtype = DType::bf16;  // Or f16.
  void* copy = nullptr;            // Written: the new parameter in 16 bits, rounded once; or null.
};

struct AdagradOptions {
  static constexpr bool kHasStep = false;
  double lr = 1e-2;
  double eps = 1e-10;
  double weight_decay = 0.0;
};

//   g  = g/scale, times max_norm/(norm + 1e-6) if the norm is larger than max_norm
//   g += weight_decay·p
//   v += g²
//   p -= lr·g / (√v + eps)
//
// The decay is in the numerator, too; it does not change `grad` itself. The result does not depend
// on the number of threads nor on the code path, to the last bit. Empty tensors and an empty list
// are allowed. Throws std::invalid_argument, before anything is written, for options out of range,
// null or misaligned pointers, and memory that stands in the lists twice and is written. The caller
// keeps the memory alive and untouched by others until it returns.
DS_EXPORT void cpu_adagrad_step(const AdagradTensor* tensors, std::size_t count,
                                const AdagradOptions& options, const CpuOptions& cpu = {},
                                const GradientOptions& gradients = {},
                                const OptimizerScalars& scalars = {});

}  // namespace ds

extern "C" DS_EXPORT int ds_self_test_cpu_adagrad(const char* device, char* detail,
                                                  unsigned long detail_size);

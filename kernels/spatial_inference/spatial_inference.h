#pragma once

// Sums of channels-last images and biases, on the CPU or a GPU. No torch, no CUDA header.

#include <cstdint>

#include "ds_op.h"
#include "ds_types.h"

namespace ds {

// Images of `pixels` times `channels` elements, the channels of a pixel together, and biases of
// `channels` elements, all of one type and in the memory of the device that computes.
struct SpatialInferenceSum {
  const void* x;
  const void* bias;
  const void* other = nullptr;       // A second image, or null.
  const void* other_bias = nullptr;  // Its bias, or null; only with `other`.
  void* out;                         // May be `x` or `other`; else it overlaps nothing.
  std::int64_t pixels;               // May be 0, as channels may.
  std::int64_t channels;
  DType dtype;
};

//   out = (x + bias) + (other + other_bias)
//
// in float, rounded once; on the CPU the same bits on every code path and with any number of
// threads. Throws std::invalid_argument, before anything is written, for null or misaligned
// pointers and sizes that do not fit, and std::runtime_error if CUDA fails.
DS_EXPORT void spatial_inference_add(const SpatialInferenceSum& sum, const CpuOptions& cpu);
// Only in a library that was built with CUDA.
DS_EXPORT void spatial_inference_add(const SpatialInferenceSum& sum, const CudaOptions& cuda);

}  // namespace ds

extern "C" DS_EXPORT int ds_self_test_spatial_inference(const char* device, char* detail,
                                                        unsigned long detail_size);

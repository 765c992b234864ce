#pragma once

// The way for groups that teams cannot take: of any size, aligned or not. All that differs between
// the ops is told at run time, so that this is one kernel a type.

#include <cuda_runtime_api.h>

#include <limits>

#include "group_kernel.cuh"

namespace ds::quantizer {

struct AnyCall {
  enum Source { kTensor, kTensorAndError, kSum } source = kTensor;

  const void* input = nullptr;  // kTensor and kTensorAndError.
  DType dtype = DType::f32;     // Of the input, or of the error.
  void* error = nullptr;        // Null: none.
  float beta = 0.0f, rest = 1.0f;

  const std::uint8_t* in_codes = nullptr;  // kSum.
  const float* in_params = nullptr;
  std::int64_t tensors = 0, size = 0, in_groups = 0;

  std::uint8_t* codes = nullptr;  // Null: values go back to the input (fake quantization).
  float* params = nullptr;
  std::uint32_t* words = nullptr;  // One or two a group, for groups of more than one chunk.
  std::int64_t groups = 0, group_size = 0;
  int bits = 8;
  bool symmetric = true, stochastic = false;
  RandomSource random;
  Places places;
};

// Elements that one warp takes. A group of one chunk is measured and rounded in one launch, and
// what is read twice comes from L1; larger ones take a launch for each.
constexpr std::int64_t kChunk = 4096;

void launch_any(const char* name, const AnyCall& call, cudaStream_t stream);

// Turns what waits in `words` into parameters.
void launch_finish(const char* name, const AnyCall& call, cudaStream_t stream);

inline Places places_of(const QuantizeCall& call) {
  const Swizzle& s = call.swizzle;
  Places places;
  if (s.nodes * s.devices * s.pipeline > 1) {
    if (call.groups > std::numeric_limits<std::int32_t>::max()) {
      refuse("quantize", "swizzled, more than 2^31 - 1 groups");
    }
    places.together = static_cast<std::uint32_t>(call.groups / (s.nodes * s.devices * s.pipeline));
    places.pipeline = static_cast<std::uint32_t>(s.pipeline);
    places.nodes = static_cast<std::uint32_t>(s.nodes);
    places.devices = static_cast<std::uint32_t>(s.devices);
  }
  return places;
}

inline AnyCall any_call(const QuantizeCall& call) {
  AnyCall any;
  any.source = call.error == nullptr ? AnyCall::kTensor : AnyCall::kTensorAndError;
  any.input = call.input;
  any.dtype = call.dtype;
  any.error = call.error;
  any.beta = call.error_beta;
  any.rest = 1.0f - call.error_beta;
  any.codes = call.codes;
  any.params = call.params;
  any.words = reinterpret_cast<std::uint32_t*>(call.params);
  any.groups = call.groups;
  any.group_size = call.group_size;
  any.bits = call.format.bits;
  any.symmetric = call.format.symmetric;
  any.places = places_of(call);
  return any;
}

}  // namespace ds::quantizer

#pragma once

// What the kernels' file offers to the host code of the op, and that to the self-test. Streams are
// cudaStream_t.

#include "channel.h"
#include "spatial_inference.h"

namespace ds::spatial_inference_cuda {

// `vector`: images are read in whole 16-byte accesses; `vector_bias`: the biases too.
void launch(const SpatialInferenceSum& sum, const Channels& channels, bool vector, bool vector_bias,
            void* stream);

int self_test(const char* device, char* detail, unsigned long detail_size);

}  // namespace ds::spatial_inference_cuda

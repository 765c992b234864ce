#pragma once

// What the kernels' file offers to the host code of the op. Streams are cudaStream_t.

#include "cuda_work_list.h"
#include "factors.h"

namespace ds::fused_adam_cuda {

void prepare(const FusedAdamOptions& options, const GradientOptions& gradients,
             const OptimizerScalars& scalars, FusedAdamFactors* factors, void* stream);

// `computed` lies on the device and is used instead of `given` if it is not null.
void launch(const WorkGroup& group, const WorkRow* rows, const std::uint32_t* items,
            const FusedAdamFactors& given, const FusedAdamFactors* computed, void* stream);

// ds_self_test_fused_adam for a device of CUDA's.
int self_test(const char* device, char* detail, unsigned long detail_size);

}  // namespace ds::fused_adam_cuda

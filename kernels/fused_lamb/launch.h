#pragma once

// What the kernels' file offers to the host code of the op. Streams are cudaStream_t.

#include "factors.h"
#include "lamb_list.h"

namespace ds::fused_lamb_cuda {

// Device memory of one launch, for one group.
struct Scratch {
  std::uint32_t* ticket;      // Zero before the launch, as
  std::uint32_t* done;        // a row: chunks of pass A that are done, and
  unsigned long long* ratio;  // a row: 2^32 and the bits of the trust ratio, once it is known.
  NormSquares* partials;      // A chunk of a row.
};

void prepare(const FusedLambOptions& options, const GradientOptions& gradients,
             const OptimizerScalars& scalars, FusedLambFactors* factors, void* stream);

// `computed` lies on the device and is used instead of `given` if it is not null.
void launch(const LambGroup& group, const LambRow* rows, const LambItem* items,
            const Scratch& scratch, const FusedLambFactors& given, const FusedLambFactors* computed,
            float* trust_ratios, int multiprocessors, void* stream);

// ds_self_test_fused_lamb for a device of CUDA's.
int self_test(const char* device, char* detail, unsigned long detail_size);

}  // namespace ds::fused_lamb_cuda

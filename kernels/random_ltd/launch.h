#pragma once

// What the kernels' file offers to the host code of the op, for calls that plan.h has passed.
// Streams are cudaStream_t; whether a launch succeeded, cudaGetLastError() says.

#include "random_ltd.h"

namespace ds::random_ltd_cuda {

void sort(const TokenSort& call, void* stream);
void copy(const TokenRows& rows, bool scatter, void* stream);
void gather_masks(const MaskGather& gather, void* stream);

int self_test(const char* device, char* detail, unsigned long detail_size);

}  // namespace ds::random_ltd_cuda

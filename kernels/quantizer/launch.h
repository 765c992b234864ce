#pragma once

// What the op's CUDA code offers to the rest of it.

namespace ds::quantizer {

int self_test_on_cuda(const char* device, char* detail, unsigned long detail_size);

}  // namespace ds::quantizer

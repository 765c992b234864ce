#pragma once

// Pieces of memory as one run. No torch.

#include <cstddef>
#include <cstdint>

#include "ds_op.h"

namespace ds {

struct UtilsPiece {
  const void* data;
  std::int64_t size;  // Bytes; may be 0.
};

// Copies the pieces, in order, to `out`, which has room for the sum of their sizes and overlaps
// none of them. Large runs are shared out to `threads` threads (0: as many as OpenMP would use) by
// bytes, not by pieces. std::invalid_argument, before anything is copied, for a negative size or a
// null pointer with a size.
DS_EXPORT void utils_flatten(void* out, const UtilsPiece* pieces, std::size_t count,
                             int threads = 0);

}  // namespace ds

extern "C" DS_EXPORT int ds_self_test_utils(const char* device, char* detail,
                                            unsigned long detail_size);

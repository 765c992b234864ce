#pragma once

// The arithmetic of an all-reduce: elements of all ranks to one.

#include <cstdint>

#include "shm_comm.h"

namespace ds {

struct ShmPieces {
  const void* const* in;  // Of each rank, in the order of ranks.
  int count;              // Of them; at least 1.
  void* out;              // May be one of `in`.
  void* copy;             // The result once more, or null.
};

using ShmReduce = void (*)(const ShmPieces& pieces, std::int64_t size);

ShmReduce shm_reduce_for(CommType type, CommReduction reduction, CpuIsa isa);

}  // namespace ds

#pragma once

// The process's locked pieces of memory. Shared by all AsyncIo, because a tensor does not know
// which one it will be read with.

#include <cstddef>
#include <cstdint>

namespace ds {

struct LockedPiece {
  std::uint64_t id = 0;  // Never used twice: memory at the same address later is another piece.
  char* start = nullptr;
  std::size_t size = 0;
};

// Counts up whenever a piece is unlocked: who keeps pieces mapped looks again then.
std::uint64_t locked_memory_epoch();
// The piece that holds all of the range, or id 0.
LockedPiece find_locked(const void* start, std::size_t size);
bool is_locked_piece(std::uint64_t id);

}  // namespace ds

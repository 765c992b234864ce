#pragma once

// How ops that treat a tensor in groups lay these over threads: pure functions, tested without a
// device.

#include <cstdint>
#include <limits>

namespace ds::groups {

// A team of 2^team_log2 threads keeps a group in registers between the pass that measures it and
// the pass that rounds it, so memory is read once. It takes the group's vectors (16 bytes of input,
// or the elements that make as many) in turns: one vector a thread and several groups at a time if
// the group is small, else up to kMost vectors of one group.
struct Teams {
  bool fits = false;        // Else the op needs another way.
  bool one_vector = false;  // One vector a thread.
  int team_log2 = 0;
  int block = 0;  // Threads.
  std::int64_t blocks = 0;
  std::int64_t chunks = 1;  // Blocks of one group, if one block cannot hold it.
};

inline int log2_ceil(std::int64_t x) {
  int log = 0;
  while ((std::int64_t{1} << log) < x) ++log;
  return log;
}

constexpr int kMaxBlock = 1024;

// `most`: vectors of one group that a thread can hold; `at_once`: groups of one vector, or 0 if a
// thread never takes several groups.
inline Teams lay_out_teams(std::int64_t groups, std::int64_t group_size, int width, bool aligned,
                           int most, int at_once) {
  Teams teams;
  const std::int64_t vectors = group_size / width;
  if (!aligned || group_size % width != 0 || groups > std::numeric_limits<std::int32_t>::max()) {
    return teams;
  }
  if (vectors > std::int64_t{most} * kMaxBlock) {
    teams.team_log2 = 8;
    teams.block = 256;
    teams.chunks = (vectors + std::int64_t{most} * 256 - 1) / (std::int64_t{most} * 256);
    teams.blocks = groups * teams.chunks;
    teams.fits = vectors <= std::numeric_limits<std::int32_t>::max() / 2 &&
                 teams.blocks <= std::numeric_limits<std::int32_t>::max();
    return teams;
  }
  teams.fits = true;
  teams.one_vector = at_once > 0 && vectors <= 32;
  teams.team_log2 = log2_ceil(teams.one_vector ? vectors : (vectors + most - 1) / most);
  const int team = 1 << teams.team_log2;
  teams.block = team > 128 ? team : 128;
  if (team > 32) teams.block = team;
  const std::int64_t groups_of_a_block =
      std::int64_t{teams.block / team} * (teams.one_vector ? at_once : 1);
  teams.blocks = (groups + groups_of_a_block - 1) / groups_of_a_block;
  return teams;
}

inline bool is_aligned(const void* pointer, std::uintptr_t to) {
  return reinterpret_cast<std::uintptr_t>(pointer) % to == 0;
}

// A division by a number that the compiler does not know, for 0 <= n < 2^31.
struct FastDivision {
  std::uint32_t divisor = 1;
  std::uint32_t multiplier = 0;
  int shift = 0;

  FastDivision() = default;
  explicit FastDivision(std::uint32_t by) : divisor(by) {
    shift = log2_ceil(by);
    multiplier = static_cast<std::uint32_t>(
        ((std::uint64_t{1} << 32) * ((std::uint64_t{1} << shift) - by)) / by + 1);
  }
#if defined(__CUDACC__)
  __device__ __forceinline__ std::uint32_t operator()(std::uint32_t n) const {
    return (__umulhi(n, multiplier) + n) >> shift;
  }
#else
  std::uint32_t operator()(std::uint32_t n) const {
    return (static_cast<std::uint32_t>(std::uint64_t{n} * multiplier >> 32) + n) >> shift;
  }
#endif
};

}  // namespace ds::groups

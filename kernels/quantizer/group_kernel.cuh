#pragma once

// How a group is measured and then rounded with one pass over memory: a team of 2^k threads (k from
// 0 to 10) holds it in registers. A thread loads up to Op::kMost vectors of one group, or one
// vector of each of Op::kAtOnce groups, all before the first use, so 64 to 128 bytes a thread are
// in flight; the team agrees on the largest value by shuffles (REDUX for a whole warp), across
// warps through shared memory. Traffic is the input once and the output once. Groups that do not
// fit go another way: any_groups.cuh.
//
// An Op provides:
//   kWidth, kMost, kAtOnce (0: never), kSymmetric
//   Raw; load<N>(group[N], vector[N], active[N], raw[N])
//   Seen (its default is "nothing"); see(raw, seen); words(seen): Words
//   Params; params_of(words)
//   place(group): where the group's output goes
//   store(place, vector, raw, params); store_params(place, params)

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "group_seen.cuh"
#include "plan.h"

namespace ds::quantizer {

using namespace groups;

// Where a group's output goes: swizzled_group() of reference.h.
struct Places {
  std::uint32_t together = 0, pipeline = 1, nodes = 1, devices = 1;  // together 0: as it comes.

  __device__ __forceinline__ std::int64_t operator()(std::int64_t group) const {
    if (together == 0) return group;
    const auto g = static_cast<std::uint32_t>(group);
    const std::uint32_t piece = g / together;
    const std::uint32_t partition = piece / pipeline;
    const std::uint32_t slice = piece - partition * pipeline;
    const std::uint32_t node = partition / devices;
    const std::uint32_t to = (partition - node * devices) * nodes + node;
    return std::int64_t{slice * (nodes * devices) + to} * together + (g - piece * together);
  }
};

template <bool kSymmetric>
struct ScaleOf;

template <>
struct ScaleOf<true> {
  float scale, inverse;
  static constexpr float offset = 0.0f;

  __device__ __forceinline__ ScaleOf(Words words, int bits) {
    const float half_range = __uint_as_float(static_cast<std::uint32_t>(127 + bits - 1) << 23);
    scale = __fdiv_rn(half_range, __uint_as_float(words.high));
    if (isinf(scale)) scale = 1.0f;
    inverse = __frcp_rn(scale);
  }
  __device__ __forceinline__ float centered(float x) const { return x; }
  __device__ __forceinline__ float to_code_space(float x) const { return x * scale; }
  __device__ __forceinline__ float to_value(float code) const { return code * inverse; }
};

template <>
struct ScaleOf<false> {
  float scale, inverse, offset;

  __device__ __forceinline__ ScaleOf(Words words, int bits) {
    float high = from_ordered(words.high), low = from_ordered(~words.low);
    if (high != high || low != low) high = low = __uint_as_float(0x7fffffffu);
    high += 0.0f;
    low += 0.0f;
    const float range = __uint_as_float(static_cast<std::uint32_t>(127 + bits) << 23);
    scale = __fdiv_rn(range, high - low);
    if (isinf(scale)) scale = 1.0f;
    inverse = __frcp_rn(scale);
    offset = high * 0.5f + low * 0.5f;
  }
  __device__ __forceinline__ float centered(float x) const { return x - offset; }
  __device__ __forceinline__ float to_code_space(float x) const { return (x - offset) * scale; }
  __device__ __forceinline__ float to_value(float code) const { return code * inverse + offset; }
};

// The code of y with the magic still on it. Less than the lowest cannot come where the scale is
// symmetric, nor of values of 16 bits: their range is at least 2^-11 or 2^-8 of the values, so that
// the offset's rounding moves no code below the lowest by half a step.
template <bool kCanBeLess>
__device__ __forceinline__ float rounded(float y, float low, float high) {
  y = fminf(y, high);
  if (kCanBeLess) y = fmaxf(y, low);
  return y + kMagic;
}

// One vector a thread, of kAtOnce groups.
template <class Op>
__global__ void __launch_bounds__(128)
    small_groups(const __grid_constant__ Op op, int groups, int vectors, int team_log2) {
  constexpr int kCount = Op::kAtOnce;
  const int lane = threadIdx.x & ((1 << team_log2) - 1);
  const int teams = blockDim.x >> team_log2;
  const std::int64_t first =
      std::int64_t{blockIdx.x} * (teams * kCount) + (threadIdx.x >> team_log2);
  std::int64_t group[kCount];
  int vector[kCount];
  bool active[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    group[i] = first + i * teams;
    vector[i] = lane;
    active[i] = lane < vectors && group[i] < groups;
  }
  typename Op::Raw raw[kCount];
  op.template load<kCount>(group, vector, active, raw);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    typename Op::Seen seen;
    if (active[i]) op.see(raw[i], seen);
    const Words words = team_max<Op::kSymmetric>(op.words(seen), team_log2);
    const typename Op::Params params = op.params_of(words);
    if (active[i]) {
      const std::int64_t to = op.place(group[i]);
      op.store(to, lane, raw[i], params);
      if (lane == 0) op.store_params(to, params);
    }
  }
}

// What a launch of large_groups does. A group that one block cannot hold takes two launches: in the
// first its blocks agree on `words` through memory, in the second they load it again.
enum Phase : int { kMeasure = 1, kRound = 2, kBoth = 3 };

// Up to kMost vectors a thread, of one group.
template <class Op>
__global__ void __launch_bounds__(kMaxBlock)
    large_groups(const __grid_constant__ Op op, int groups, int vectors, int team_log2, int chunks,
                 int phase, std::uint32_t* all_words) {
  constexpr int kCount = Op::kMost;
  const int lane = threadIdx.x & ((1 << team_log2) - 1);
  // The second launch goes backwards: what the first has read last may still be in the cache.
  const int block =
      phase == kRound ? static_cast<int>(gridDim.x - 1 - blockIdx.x) : static_cast<int>(blockIdx.x);
  const int chunk = chunks == 1 ? 0 : block % chunks;
  const std::int64_t mine =
      chunks == 1 ? std::int64_t{block} * (blockDim.x >> team_log2) + (threadIdx.x >> team_log2)
                  : block / chunks;
  std::int64_t group[kCount];
  int vector[kCount];
  bool active[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    group[i] = mine;
    vector[i] = lane + ((chunk * kCount + i) << team_log2);
    active[i] = vector[i] < vectors && mine < groups;
  }
  typename Op::Raw raw[kCount];
  op.template load<kCount>(group, vector, active, raw);
  Words words;
  if (phase & kMeasure) {
    typename Op::Seen seen;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (active[i]) op.see(raw[i], seen);
    }
    words = team_max<Op::kSymmetric>(op.words(seen), team_log2);
  }
  if (mine >= groups) return;
  const std::int64_t to = op.place(mine);
  std::uint32_t* kept = all_words + (Op::kSymmetric ? to : 2 * to);
  if (phase == kMeasure) {
    if (lane == 0) {
      atomicMax(kept, words.high);
      if (!Op::kSymmetric) atomicMax(kept + 1, words.low);
    }
    return;
  }
  if (phase == kRound) {
    words.high = kept[0];
    if (!Op::kSymmetric) words.low = kept[1];
  }
  const typename Op::Params params = op.params_of(words);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (active[i]) op.store(to, vector[i], raw[i], params);
  }
  if (phase == kBoth && lane == 0) op.store_params(to, params);
}

template <bool kSymmetric>
__device__ __forceinline__ void put_params(float* params, std::int64_t to,
                                           const ScaleOf<kSymmetric>& p) {
  if (kSymmetric) {
    params[to] = p.inverse;
  } else {
    reinterpret_cast<float2*>(params)[to] = make_float2(p.inverse, p.offset);
  }
}

inline void clear_words(const char* name, std::uint32_t* words, std::int64_t groups, bool symmetric,
                        cudaStream_t stream) {
  if (words == nullptr) refuse(name, "groups of this size need scratch memory");
  const std::size_t bytes = static_cast<std::size_t>(groups) * (symmetric ? 4 : 8);
  if (const cudaError_t status = cudaMemsetAsync(words, 0, bytes, stream); status != cudaSuccess) {
    throw std::runtime_error(std::string("ds::") + name + ": " + cudaGetErrorString(status));
  }
}

// With more than one chunk a group, the caller turns `words` into parameters afterwards.
template <class Op>
void launch_teams(const char* name, const Op& op, const Teams& teams, std::int64_t groups,
                  std::int64_t group_size, std::uint32_t* words, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(teams.blocks);
  const int vectors = static_cast<int>(group_size / Op::kWidth);
  const int count = static_cast<int>(groups);
  const auto large = [&](Phase phase) {
    large_groups<Op><<<blocks, teams.block, 0, stream>>>(
        op, count, vectors, teams.team_log2, static_cast<int>(teams.chunks), phase, words);
  };
  if (teams.chunks > 1) {
    clear_words(name, words, groups, Op::kSymmetric, stream);
    large(kMeasure);
    large(kRound);
  } else if constexpr (Op::kAtOnce == 0) {
    large(kBoth);
  } else if (teams.one_vector) {
    small_groups<Op><<<blocks, teams.block, 0, stream>>>(op, count, vectors, teams.team_log2);
  } else {
    large(kBoth);
  }
  check_launch(name);
}

// kWidth codes, in the low bits of `code`, as they lie in memory: x and y for 8 codes of 8 bits, x
// for 4 of 8 or 8 of 4, the low half of x for 4 of 4.
template <int kWidth>
__device__ __forceinline__ uint2 packed_codes(int bits, const std::uint32_t (&code)[kWidth]) {
  static_assert(kWidth == 8 || kWidth == 4, "");
  const std::uint32_t a = low_bytes(code[0], code[1], code[2], code[3]);
  const std::uint32_t b = kWidth == 8 ? low_bytes(code[kWidth - 4], code[kWidth - 3],
                                                  code[kWidth - 2], code[kWidth - 1])
                                      : 0u;
  if (bits == 8) return make_uint2(a, b);
  const std::uint32_t first = __byte_perm(a, b, 0x6420);
  const std::uint32_t second = __byte_perm(a, b, 0x7531);
  return make_uint2((first << 4 & 0xf0f0f0f0u) | (second & 0x0f0f0f0fu), 0u);
}

// To element `at` of the output. Evicted first: with plain stores of so few bytes a thread, an H200
// took 5 to 20 % longer.
template <int kWidth>
__device__ __forceinline__ void store_codes(std::uint8_t* codes, std::int64_t at, int bits,
                                            const std::uint32_t (&code)[kWidth]) {
  const uint2 packed = packed_codes<kWidth>(bits, code);
  if (bits == 8 && kWidth == 8) {
    __stcs(reinterpret_cast<uint2*>(codes + at), packed);
  } else if (bits == 8 || kWidth == 8) {
    __stcs(reinterpret_cast<unsigned int*>(codes + at * bits / 8), packed.x);
  } else {
    __stcs(reinterpret_cast<unsigned short*>(codes + at / 2),
           static_cast<unsigned short>(packed.x));
  }
}

// The codes of kWidth elements as they lie in memory: x and y for 8 codes of 8 bits, x for 4 of 8
// or 8 of 4, the low half of x for 4 of 4.
template <int kWidth>
__device__ __forceinline__ uint2 load_codes(const std::uint8_t* codes, std::int64_t at, int bits) {
  static_assert(kWidth == 8 || kWidth == 4, "");
  if (bits == 8) {
    if (kWidth == 8) return *reinterpret_cast<const uint2*>(codes + at);
    return make_uint2(*reinterpret_cast<const unsigned int*>(codes + at), 0u);
  }
  if (kWidth == 8) return make_uint2(*reinterpret_cast<const unsigned int*>(codes + at / 2), 0u);
  return make_uint2(*reinterpret_cast<const unsigned short*>(codes + at / 2), 0u);
}

// As floats. `flip` is the sign bit of a code if codes are signed, else 0: a byte in the mantissa
// of 2^23 is a whole number above it, once signed codes are made unsigned by adding the flipped
// bit.
template <int kWidth>
__device__ __forceinline__ void widen_codes(uint2 packed, int bits, std::uint32_t flip,
                                            float (&code)[kWidth]) {
  std::uint32_t a = packed.x, b = packed.y;
  if (bits == 4) {
    const std::uint32_t first = packed.x >> 4 & 0x0f0f0f0fu, second = packed.x & 0x0f0f0f0fu;
    a = __byte_perm(first, second, 0x5140);
    b = __byte_perm(first, second, 0x7362);
  }
  const float bias = 8388608.0f + static_cast<float>(flip);
  a ^= flip * 0x01010101u;
  b ^= flip * 0x01010101u;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    code[i] = __uint_as_float(__byte_perm(a, 0x4B000000u, 0x7540 + i)) - bias;
    if (kWidth == 8) {
      code[kWidth - 4 + i] = __uint_as_float(__byte_perm(b, 0x4B000000u, 0x7540 + i)) - bias;
    }
  }
}

}  // namespace ds::quantizer

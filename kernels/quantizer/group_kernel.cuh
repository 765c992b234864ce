#pragma once

// How a group is measured and then rounded with one pass over memory: a team of 2^k threads (k from
// 0 to 10) holds it in registers. A thread loads up to Op::kMost vectors of one group, or one
// vector of each of Op::kAtOnce groups, all before the first use, so 64 to 128 bytes a thread are
// in flight; the team agrees on the largest value by shuffles (REDUX for a whole warp), across
// warps through shared memory. Traffic is the input once and the output once. Groups that do not
// fit go another way: any_groups.cuh.
//
// What is measured is one or two words a group, combined by the unsigned maximum, so that the order
// does not matter: symmetric |x|'s bits (a NaN is above infinity); asymmetric an order-preserving
// map of the largest x and the complement of the smallest one's.
//
// An Op provides:
//   kWidth, kMost, kAtOnce, kSymmetric
//   Raw; load<N>(group[N], vector[N], active[N], raw[N])
//   Seen (its default is "nothing"); see(raw, seen); words(seen): Words
//   Params; params_of(words)
//   place(group): where the group's output goes
//   store(place, vector, raw, params); store_params(place, params)

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cuda_vector.cuh"
#include "plan.h"

namespace ds::quantizer {

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

struct Words {
  std::uint32_t high = 0;
  std::uint32_t low = 0;  // Used where asymmetric.
};

__device__ __forceinline__ std::uint32_t ordered(float x) {
  const std::uint32_t bits = __float_as_uint(x);
  return bits ^ (static_cast<std::uint32_t>(static_cast<std::int32_t>(bits) >> 31) | 0x80000000u);
}
__device__ __forceinline__ float from_ordered(std::uint32_t key) {
  return __uint_as_float(key ^ ((key >> 31) - 1u | 0x80000000u));
}

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
    offset = (high + low) * 0.5f;
  }
  __device__ __forceinline__ float to_code_space(float x) const { return (x - offset) * scale; }
  __device__ __forceinline__ float to_value(float code) const { return code * inverse + offset; }
};

// 1.5·2^23: adding it leaves a whole number in the low bits of the sum, in two's complement.
constexpr float kMagic = 12582912.0f;

// The code of y with the magic still on it. The symmetric scale cannot give less than the lowest.
template <bool kSymmetric>
__device__ __forceinline__ float rounded(float y, float low, float high) {
  y = fminf(y, high);
  if (!kSymmetric) y = fmaxf(y, low);
  return y + kMagic;
}

// Seen values, for floats that are computed (sums) and for vectors as they were loaded.
template <bool kSymmetric>
struct SeenFloats {
  Words words;
  __device__ __forceinline__ void see(float x) {
    if (kSymmetric) {
      words.high = max(words.high, __float_as_uint(x) & 0x7fffffffu);
    } else {
      const std::uint32_t key = ordered(x);
      words.high = max(words.high, key);
      words.low = max(words.low, ~key);
    }
  }
};

template <class T>
__device__ __forceinline__ float widen_bits(std::uint32_t low_half) {
  T x;
  x.bits = static_cast<std::uint16_t>(low_half);
  return widen(x);
}

template <class T>
struct Packed;  // The two of a word, as CUDA's type.
template <>
struct Packed<f16> {
  using Type = __half2;
};
template <>
struct Packed<bf16> {
  using Type = __nv_bfloat162;
};

template <class T, bool kSymmetric>
struct SeenVectors {
  // Absolute values of 16 bits compare as whole numbers; signed ones by the type's own maximum that
  // gives NaN for NaN.
  static constexpr std::uint32_t kInfinity = std::is_same_v<T, f16> ? 0x7c007c00u : 0x7f807f80u;
  std::uint32_t high = kSymmetric ? 0u : kInfinity | 0x80008000u;
  std::uint32_t low = kInfinity;

  __device__ __forceinline__ void see(uint4 v) {
    see_word(v.x);
    see_word(v.y);
    see_word(v.z);
    see_word(v.w);
  }
  __device__ __forceinline__ void see_word(std::uint32_t w) {
    if (kSymmetric) {
      high = __vmaxu2(high, w & 0x7fff7fffu);
      return;
    }
    using P = typename Packed<T>::Type;
    P x, h, l;
    memcpy(&x, &w, 4);
    memcpy(&h, &high, 4);
    memcpy(&l, &low, 4);
    h = __hmax2_nan(h, x);
    l = __hmin2_nan(l, x);
    memcpy(&high, &h, 4);
    memcpy(&low, &l, 4);
  }
  __device__ __forceinline__ Words words() const {
    Words out;
    if (kSymmetric) {
      const std::uint32_t most = max(high & 0xffffu, high >> 16);
      out.high = __float_as_uint(widen_bits<T>(most)) & 0x7fffffffu;
    } else {
      out.high = max(ordered(widen_bits<T>(high)), ordered(widen_bits<T>(high >> 16)));
      out.low = max(~ordered(widen_bits<T>(low)), ~ordered(widen_bits<T>(low >> 16)));
    }
    return out;
  }
};

template <bool kSymmetric>
struct SeenVectors<float, kSymmetric> {
  SeenFloats<kSymmetric> floats;
  __device__ __forceinline__ void see(uint4 v) {
    floats.see(__uint_as_float(v.x));
    floats.see(__uint_as_float(v.y));
    floats.see(__uint_as_float(v.z));
    floats.see(__uint_as_float(v.w));
  }
  __device__ __forceinline__ Words words() const { return floats.words; }
};

// The maximum over 2^log2 neighbouring lanes (log2 <= 5).
__device__ __forceinline__ std::uint32_t team_max(std::uint32_t x, int log2) {
#if __CUDA_ARCH__ >= 800
  if (log2 == 5) return __reduce_max_sync(0xffffffffu, x);
#endif
  for (int i = 0; i < log2; ++i) x = max(x, __shfl_xor_sync(0xffffffffu, x, 1 << i));
  return x;
}

template <bool kSymmetric>
__device__ __forceinline__ Words team_max(Words words, int log2) {
  words.high = team_max(words.high, log2 < 5 ? log2 : 5);
  if (!kSymmetric) words.low = team_max(words.low, log2 < 5 ? log2 : 5);
  if (log2 <= 5) return words;
  __shared__ Words of_warp[32];
  const int warps = 1 << (log2 - 5);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = words;
  __syncthreads();
  words = Words();
  if (threadIdx.x % 32 < warps) words = of_warp[threadIdx.x % 32];
  words.high = team_max(words.high, 5);
  if (!kSymmetric) words.low = team_max(words.low, 5);
  return words;
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

// Up to kMost vectors a thread, of one group.
template <class Op>
__global__ void __launch_bounds__(kMaxBlock)
    large_groups(const __grid_constant__ Op op, int groups, int vectors, int team_log2) {
  constexpr int kCount = Op::kMost;
  const int lane = threadIdx.x & ((1 << team_log2) - 1);
  const std::int64_t mine =
      std::int64_t{blockIdx.x} * (blockDim.x >> team_log2) + (threadIdx.x >> team_log2);
  std::int64_t group[kCount];
  int vector[kCount];
  bool active[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    group[i] = mine;
    vector[i] = lane + (i << team_log2);
    active[i] = vector[i] < vectors && mine < groups;
  }
  typename Op::Raw raw[kCount];
  op.template load<kCount>(group, vector, active, raw);
  typename Op::Seen seen;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (active[i]) op.see(raw[i], seen);
  }
  const Words words = team_max<Op::kSymmetric>(op.words(seen), team_log2);
  if (mine >= groups) return;
  const typename Op::Params params = op.params_of(words);
  const std::int64_t to = op.place(mine);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (active[i]) op.store(to, vector[i], raw[i], params);
  }
  if (lane == 0) op.store_params(to, params);
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

inline void check_launch(const char* what) {
  if (const cudaError_t status = cudaGetLastError(); status != cudaSuccess) {
    throw std::runtime_error(std::string("ds::") + what + ": " + cudaGetErrorString(status));
  }
}

template <class Op>
void launch_teams(const char* name, const Op& op, const Teams& teams, std::int64_t groups,
                  std::int64_t group_size, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(teams.blocks);
  const int vectors = static_cast<int>(group_size / Op::kWidth);
  const int count = static_cast<int>(groups);
  const auto kernel = teams.one_vector ? small_groups<Op> : large_groups<Op>;
  kernel<<<blocks, teams.block, 0, stream>>>(op, count, vectors, teams.team_log2);
  check_launch(name);
}

// --- Codes ---------------------------------------------------------------------------------------

// The low bytes of four words, the first in the lowest.
__device__ __forceinline__ std::uint32_t low_bytes(std::uint32_t a, std::uint32_t b,
                                                   std::uint32_t c, std::uint32_t d) {
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

// kWidth codes, in the low bits of `code`, to element `at` of the output.
template <int kWidth>
__device__ __forceinline__ void store_codes(std::uint8_t* codes, std::int64_t at, int bits,
                                            const std::uint32_t (&code)[kWidth]) {
  static_assert(kWidth == 8 || kWidth == 4, "");
  const std::uint32_t a = low_bytes(code[0], code[1], code[2], code[3]);
  const std::uint32_t b = kWidth == 8 ? low_bytes(code[kWidth - 4], code[kWidth - 3],
                                                  code[kWidth - 2], code[kWidth - 1])
                                      : 0u;
  if (bits == 8) {
    if (kWidth == 8) {
      __stcs(reinterpret_cast<uint2*>(codes + at), make_uint2(a, b));
    } else {
      __stcs(reinterpret_cast<unsigned int*>(codes + at), a);
    }
    return;
  }
  const std::uint32_t first = __byte_perm(a, b, 0x6420);
  const std::uint32_t second = __byte_perm(a, b, 0x7531);
  const std::uint32_t both = (first << 4 & 0xf0f0f0f0u) | (second & 0x0f0f0f0fu);
  if (kWidth == 8) {
    __stcs(reinterpret_cast<unsigned int*>(codes + at / 2), both);
  } else {
    __stcs(reinterpret_cast<unsigned short*>(codes + at / 2), static_cast<unsigned short>(both));
  }
}

// The codes of kWidth elements as they lie in memory: x and y for 8 codes of 8 bits, x for 4 of 8
// or 8 of 4, the low half of x for 4 of 4.
template <int kWidth>
__device__ __forceinline__ uint2 load_codes(const std::uint8_t* codes, std::int64_t at, int bits) {
  static_assert(kWidth == 8 || kWidth == 4, "");
  if (bits == 8) {
    if (kWidth == 8) return __ldcs(reinterpret_cast<const uint2*>(codes + at));
    return make_uint2(__ldcs(reinterpret_cast<const unsigned int*>(codes + at)), 0u);
  }
  if (kWidth == 8)
    return make_uint2(__ldcs(reinterpret_cast<const unsigned int*>(codes + at / 2)), 0u);
  return make_uint2(__ldcs(reinterpret_cast<const unsigned short*>(codes + at / 2)), 0u);
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

// --- Vectors -------------------------------------------------------------------------------------

template <class T>
struct VectorOf {  // 16 bytes.
  static constexpr int kWidth = 16 / sizeof(T);

  __device__ __forceinline__ static void widen(uint4 v, float (&x)[kWidth]) {
    const std::uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (sizeof(T) == 4) {
        x[i] = __uint_as_float(word[i]);
      } else {
        x[2 * i] = widen_bits<T>(word[i] & 0xffffu);
        x[2 * i + 1] = widen_bits<T>(word[i] >> 16);
      }
    }
  }

  __device__ __forceinline__ static uint4 narrow(const float (&x)[kWidth]) {
    std::uint32_t word[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (sizeof(T) == 4) {
        word[i] = __float_as_uint(x[i]);
      } else if constexpr (std::is_same_v<T, f16>) {
        const __half2 pair = __floats2half2_rn(x[2 * i], x[2 * i + 1]);
        memcpy(&word[i], &pair, 4);
      } else {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
        memcpy(&word[i], &pair, 4);
      }
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
  }
};

template <class Function>
void with_type(DType dtype, const Function& function) {
  if (dtype == DType::f32) function(float{});
  if (dtype == DType::f16) function(f16{});
  if (dtype == DType::bf16) function(bf16{});
}

}  // namespace ds::quantizer

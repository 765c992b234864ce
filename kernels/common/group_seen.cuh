#pragma once

// Device code of ops that treat a tensor in groups: what is seen of a group's values, agreed upon
// by the team that holds it, and vectors of 16 bytes as floats.
//
// What is seen is one or two words, combined by the unsigned maximum, so that the order does not
// matter: symmetric |x|'s bits (a NaN is above infinity); asymmetric an order-preserving map of the
// largest x and the complement of the smallest one's.

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "cuda_vector.cuh"
#include "ds_types.h"
#include "group_plan.h"
#include "philox.h"

namespace ds::groups {

// 1.5·2^23: adding it leaves a whole number in the low bits of the sum, in two's complement.
constexpr float kMagic = 12582912.0f;

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

// The larger and the smaller, NaN where either is. Written out: CUDA's headers for 16-bit types
// cost more to compile than all else in an op.
__device__ __forceinline__ float nan_max(float a, float b) {
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}
__device__ __forceinline__ float nan_min(float a, float b) {
  float c;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}
// Of both halves of a word.
template <class T>
__device__ __forceinline__ std::uint32_t nan_max2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t c;
  if constexpr (std::is_same_v<T, f16>) {
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  } else {
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  }
  return c;
}
template <class T>
__device__ __forceinline__ std::uint32_t nan_min2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t c;
  if constexpr (std::is_same_v<T, f16>) {
    asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  } else {
    asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  }
  return c;
}

// The larger magnitude, with any sign.
template <class T>
__device__ __forceinline__ std::uint32_t nan_max_of_magnitudes2(std::uint32_t a, std::uint32_t b) {
#if __CUDA_ARCH__ >= 860
  std::uint32_t c;
  if constexpr (std::is_same_v<T, f16>) {
    asm("max.NaN.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  } else {
    asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  }
  return c;
#else
  return nan_max2<T>(a, b & 0x7fff7fffu);
#endif
}

// What was seen of values that are computed, and of vectors as they were loaded.
template <bool kSymmetric>
struct SeenFloats;

template <>
struct SeenFloats<true> {
  float most = 0.0f;
  __device__ __forceinline__ void see(float x) { most = nan_max(most, fabsf(x)); }
  __device__ __forceinline__ Words words() const {
    return {__float_as_uint(most) & 0x7fffffffu, 0};
  }
};

template <>
struct SeenFloats<false> {
  float high = -INFINITY, low = INFINITY;
  __device__ __forceinline__ void see(float x) {
    high = nan_max(high, x);
    low = nan_min(low, x);
  }
  __device__ __forceinline__ Words words() const { return {ordered(high), ~ordered(low)}; }
};

template <class T>
__device__ __forceinline__ float widen_bits(std::uint32_t low_half) {
  T x;
  x.bits = static_cast<std::uint16_t>(low_half);
  return widen(x);
}

template <class T, bool kSymmetric>
struct SeenVectors {
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
      high = nan_max_of_magnitudes2<T>(high, w);
    } else {
      high = nan_max2<T>(high, w);
      low = nan_min2<T>(low, w);
    }
  }
  __device__ __forceinline__ Words words() const {
    Words out;
    if (kSymmetric) {
      out.high = max(__float_as_uint(widen_bits<T>(high)) & 0x7fffffffu,
                     __float_as_uint(widen_bits<T>(high >> 16)) & 0x7fffffffu);
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
  __device__ __forceinline__ Words words() const { return floats.words(); }
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
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word[i]) : "f"(x[2 * i + 1]), "f"(x[2 * i]));
      } else {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word[i]) : "f"(x[2 * i + 1]), "f"(x[2 * i]));
      }
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
  }
};

// The lowest, and the highest, bytes of four words, the first in the lowest.
__device__ __forceinline__ std::uint32_t low_bytes(std::uint32_t a, std::uint32_t b,
                                                   std::uint32_t c, std::uint32_t d) {
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}
__device__ __forceinline__ std::uint32_t high_bytes(std::uint32_t a, std::uint32_t b,
                                                    std::uint32_t c, std::uint32_t d) {
  return __byte_perm(__byte_perm(a, b, 0x0073), __byte_perm(c, d, 0x0073), 0x5410);
}

// 128 plus 16 random bits below the point: u + 128, in one instruction.
__device__ __forceinline__ float above_128(const Philox& random, int i) {
  return __uint_as_float(
      __byte_perm(random.word[i / 2], 0x43000000u, i % 2 == 0 ? 0x7610 : 0x7632));
}

__device__ __forceinline__ Philox random_of(const RandomSource& source, std::int64_t at) {
  const std::uint64_t seed = source.device ? __ldg(source.device) : source.seed;
  const std::uint64_t offset = source.device ? __ldg(source.device + 1) : source.offset;
  return philox(seed, static_cast<std::uint64_t>(at) / 8, offset);
}

inline void check_launch(const char* what) {
  if (const cudaError_t status = cudaGetLastError(); status != cudaSuccess) {
    throw std::runtime_error(std::string("ds::") + what + ": " + cudaGetErrorString(status));
  }
}

// Calls function(T{}) with the type's T.
template <class Function>
void with_type(DType dtype, const Function& function) {
  if (dtype == DType::f32) function(float{});
  if (dtype == DType::f16) function(f16{});
  if (dtype == DType::bf16) function(bf16{});
}

}  // namespace ds::groups

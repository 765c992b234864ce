#pragma once

// Device code of ops that treat a tensor in groups: what is seen of a group's values, agreed upon
// by the team that holds it, and vectors of 16 bytes as floats.
//
// What is seen is one or two words, combined by the unsigned maximum, so that the order does not
// matter: symmetric |x|'s bits (a NaN is above infinity); asymmetric an order-preserving map of the
// largest x and the complement of the smallest one's.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "cuda_vector.cuh"
#include "ds_types.h"
#include "group_plan.h"

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

// The low bytes of four words, the first in the lowest.
__device__ __forceinline__ std::uint32_t low_bytes(std::uint32_t a, std::uint32_t b,
                                                   std::uint32_t c, std::uint32_t d) {
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
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

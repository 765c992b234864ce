#pragma once

// Device code that the CUDA ops share: the storage types of half.h on the device, and runs of
// elements that are read and written in whole words.

#include <cstdint>
#include <type_traits>

#include "half.h"

namespace ds {

__device__ __forceinline__ float widen(float x) {
  return x;
}
__device__ __forceinline__ float widen(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
__device__ __forceinline__ float widen(bf16 x) {
  return __uint_as_float(static_cast<std::uint32_t>(x.bits) << 16);
}

// Rounds to nearest even. One instruction each, written out: CUDA's headers for the two types cost
// more to compile than all else in an op.
template <class T>
__device__ __forceinline__ T narrow(float x);
template <>
__device__ __forceinline__ float narrow<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ f16 narrow<f16>(float x) {
  f16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}
template <>
__device__ __forceinline__ bf16 narrow<bf16>(float x) {
  bf16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}

// 16 bytes of memory as registers.
__device__ __forceinline__ uint4 load_16(const void* from) {
  return *static_cast<const uint4*>(from);
}
__device__ __forceinline__ void store_16(void* to, uint4 value) {
  *static_cast<uint4*>(to) = value;
}

// N elements of T as they lie in memory, read and written 16 bytes at a time, or 8, or one element.
// Without hints to the caches: streaming loads and stores were 1 to 2 % slower on an H200, even
// where nothing is read twice.
template <class T, int N>
struct alignas(N * sizeof(T) % 16 == 0 ? 16 : N * sizeof(T)) Run {
  static constexpr int kBytes = N * static_cast<int>(sizeof(T));
  using Word =
      std::conditional_t<kBytes % 16 == 0, uint4, std::conditional_t<kBytes == 8, uint2, T>>;
  static constexpr int kWords = kBytes / static_cast<int>(sizeof(Word));
  static_assert(kBytes % 8 == 0 || N == 1, "whole accesses, or one element");
  T at[N];

  __device__ __forceinline__ void load(const T* from) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      reinterpret_cast<Word*>(at)[i] = reinterpret_cast<const Word*>(from)[i];
    }
  }
  __device__ __forceinline__ void store(T* to) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      reinterpret_cast<Word*>(to)[i] = reinterpret_cast<const Word*>(at)[i];
    }
  }
};

}  // namespace ds

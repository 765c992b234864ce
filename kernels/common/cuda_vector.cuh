#pragma once

// Device code that the CUDA ops share: the storage types of half.h on the device, and runs of
// elements that are read and written 16 bytes at a time, past the caches where nothing comes back.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "half.h"

namespace ds {

__device__ __forceinline__ float widen(float x) {
  return x;
}
__device__ __forceinline__ float widen(f16 x) {
  return __half2float(__ushort_as_half(x.bits));
}
__device__ __forceinline__ float widen(bf16 x) {
  return __uint_as_float(static_cast<std::uint32_t>(x.bits) << 16);
}

// Rounds to nearest even.
template <class T>
__device__ __forceinline__ T narrow(float x);
template <>
__device__ __forceinline__ float narrow<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ f16 narrow<f16>(float x) {
  return {__half_as_ushort(__float2half_rn(x))};
}
template <>
__device__ __forceinline__ bf16 narrow<bf16>(float x) {
  return {__bfloat16_as_ushort(__float2bfloat16_rn(x))};
}

// 16 bytes of memory as registers. Evicted first: an optimizer or a quantizer meets the same bytes
// again only a whole pass later, when no cache has them any more.
__device__ __forceinline__ uint4 load_16(const void* from) {
  return __ldcs(static_cast<const uint4*>(from));
}
__device__ __forceinline__ void store_16(void* to, uint4 value) {
  __stcs(static_cast<uint4*>(to), value);
}

// N elements of T, N·sizeof(T) a multiple of 16, as they lie in memory.
template <class T, int N>
struct alignas(16) Run {
  static_assert(N * sizeof(T) % 16 == 0, "whole 16-byte accesses");
  T at[N];

  __device__ __forceinline__ void load(const T* from) {
#pragma unroll
    for (int i = 0; i < static_cast<int>(N * sizeof(T) / 16); ++i) {
      reinterpret_cast<uint4*>(at)[i] = load_16(reinterpret_cast<const uint4*>(from) + i);
    }
  }
  __device__ __forceinline__ void store(T* to) const {
#pragma unroll
    for (int i = 0; i < static_cast<int>(N * sizeof(T) / 16); ++i) {
      store_16(reinterpret_cast<uint4*>(to) + i, reinterpret_cast<const uint4*>(at)[i]);
    }
  }
};

}  // namespace ds

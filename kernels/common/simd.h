#pragma once

// One vocabulary of vector operations, once per code path, so that an op's arithmetic is written
// once (for_each_isa.h compiles it for each path). In namespace ds::<path>:
//
//   Vec, kLanes           a vector of floats; + - * / work on it
//   load(p), store(p, x)  kLanes elements of float, f16 or bf16, at any alignment
//   load(p, n), store(p, x, n)   the first n < kLanes elements; memory behind them is not touched,
//                                lanes without an element load as 0
//   store_pair(p, x, y)   store(p, x) and store(p + kLanes, y), cheaper where one instruction does
//   both set1(x), sqrt(x), max0(x)    broadcast, square root, x < 0 ? 0 : x (NaN stays NaN)
//   fused(a, b, c)        a·b + c, rounded once
//   signed_step(x, s)     x > 0: s, x < 0: -s, x == 0: 0, NaN: NaN
//   larger(a, b), smaller(a, b)  a > b ? a : b and a < b ? a : b: with a NaN, b
//   add_exponent(x, n)    x·2^n for n = 1.5·2^23 + a whole number; neither may leave the normal
//   range unless_below(x, least, y)    x < least: 0, x is NaN: x, else y
//
// Each function carries its target attribute instead of the file a -m flag: with a flag, an inline
// function of some other header could be compiled for AVX-512 and then be the copy that the linker
// keeps for every path.

#include <cstdint>
#include <cstring>

#include "half.h"

#if defined(__x86_64__)
// GCC 12 warns of the registers that its own header leaves undefined on purpose (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

namespace ds::scalar {

using Vec = float;
inline constexpr int kLanes = 1;

template <class T>
DS_INLINE Vec load(const T* p) {
  return to_float(*p);
}
template <class T>
DS_INLINE void store(T* p, Vec x) {
  from_float(x, *p);
}
// Never reached with one lane; they let the shared code compile.
template <class T>
DS_INLINE Vec load(const T* p, std::int64_t) {
  return to_float(*p);
}
template <class T>
DS_INLINE void store(T* p, Vec x, std::int64_t) {
  from_float(x, *p);
}
template <class T>
DS_INLINE void store_pair(T* p, Vec x, Vec y) {
  store(p, x);
  store(p + kLanes, y);
}
DS_INLINE Vec set1(float x) {
  return x;
}
DS_INLINE Vec sqrt(Vec x) {
  return __builtin_sqrtf(x);
}
DS_INLINE Vec max0(Vec x) {
  return x < 0.0f ? 0.0f : x;
}
DS_INLINE Vec fused(Vec a, Vec b, Vec c) {
  return __builtin_fmaf(a, b, c);
}
DS_INLINE Vec signed_step(Vec x, Vec s) {
  if (x == 0.0f || x != x) return x;
  return float_from_bits(float_bits(s) ^ (float_bits(x) & 0x80000000u));
}
DS_INLINE Vec larger(Vec a, Vec b) {
  return a > b ? a : b;
}
DS_INLINE Vec smaller(Vec a, Vec b) {
  return a < b ? a : b;
}
DS_INLINE Vec add_exponent(Vec x, Vec n) {
  return float_from_bits(float_bits(x) + (float_bits(n) << 23));
}
DS_INLINE Vec unless_below(Vec x, Vec least, Vec y) {
  return x < least ? 0.0f : x != x ? x : y;
}

}  // namespace ds::scalar

#if defined(__x86_64__)

#define DS_TARGET_AVX2 __attribute__((target("avx2,fma,f16c")))
#define DS_TARGET_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")))
#define DS_TARGET_AVX512_BF16 \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")))

namespace ds::avx2 {

using Vec = __m256;
inline constexpr int kLanes = 8;

DS_TARGET_AVX2 DS_INLINE Vec load(const float* p) {
  return _mm256_loadu_ps(p);
}
DS_TARGET_AVX2 DS_INLINE Vec load(const f16* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
DS_TARGET_AVX2 DS_INLINE Vec load(const bf16* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
DS_TARGET_AVX2 DS_INLINE void store(float* p, Vec x) {
  _mm256_storeu_ps(p, x);
}
DS_TARGET_AVX2 DS_INLINE void store(f16* p, Vec x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
DS_TARGET_AVX2 DS_INLINE void store(bf16* p, Vec x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  // A branch that is never taken in a healthy run costs less than selecting in every vector.
  const __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
  if (__builtin_expect(_mm256_movemask_ps(nan) != 0, 0)) {
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    rounded = _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(nan));
  }
  const __m256i top = _mm256_srli_epi32(rounded, 16);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packus_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1)));
}
// AVX2 has no masked access to 16-bit elements. A tail is at most once per tensor and thread, so
// a detour through the stack costs nothing that can be measured.
template <class T>
DS_TARGET_AVX2 DS_INLINE Vec load(const T* p, std::int64_t n) {
  T padded[kLanes] = {};
  std::memcpy(padded, p, static_cast<std::size_t>(n) * sizeof(T));
  return load(static_cast<const T*>(padded));
}
template <class T>
DS_TARGET_AVX2 DS_INLINE void store(T* p, Vec x, std::int64_t n) {
  T padded[kLanes];
  store(static_cast<T*>(padded), x);
  std::memcpy(p, padded, static_cast<std::size_t>(n) * sizeof(T));
}
template <class T>
DS_TARGET_AVX2 DS_INLINE void store_pair(T* p, Vec x, Vec y) {
  store(p, x);
  store(p + kLanes, y);
}
DS_TARGET_AVX2 DS_INLINE Vec set1(float x) {
  return _mm256_set1_ps(x);
}
DS_TARGET_AVX2 DS_INLINE Vec sqrt(Vec x) {
  return _mm256_sqrt_ps(x);
}
// MAXPS gives its second operand if either is NaN.
DS_TARGET_AVX2 DS_INLINE Vec max0(Vec x) {
  return _mm256_max_ps(_mm256_setzero_ps(), x);
}
DS_TARGET_AVX2 DS_INLINE Vec fused(Vec a, Vec b, Vec c) {
  return _mm256_fmadd_ps(a, b, c);
}
DS_TARGET_AVX2 DS_INLINE Vec signed_step(Vec x, Vec s) {
  const Vec signed_s = _mm256_xor_ps(_mm256_and_ps(x, _mm256_set1_ps(-0.0f)), s);
  return _mm256_blendv_ps(signed_s, x, _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_EQ_UQ));
}
DS_TARGET_AVX2 DS_INLINE Vec larger(Vec a, Vec b) {
  return _mm256_max_ps(a, b);
}
DS_TARGET_AVX2 DS_INLINE Vec smaller(Vec a, Vec b) {
  return _mm256_min_ps(a, b);
}
DS_TARGET_AVX2 DS_INLINE Vec add_exponent(Vec x, Vec n) {
  const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(n), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), exponent));
}
DS_TARGET_AVX2 DS_INLINE Vec unless_below(Vec x, Vec least, Vec y) {
  const Vec kept = _mm256_andnot_ps(_mm256_cmp_ps(x, least, _CMP_LT_OQ), y);
  return _mm256_blendv_ps(kept, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

}  // namespace ds::avx2

namespace ds::avx512 {

using Vec = __m512;
inline constexpr int kLanes = 16;

DS_TARGET_AVX512 DS_INLINE __mmask16 first(std::int64_t n) {
  return static_cast<__mmask16>((1u << n) - 1u);
}
DS_TARGET_AVX512 DS_INLINE Vec widen_bf16(__m256i bits) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
DS_TARGET_AVX512 DS_INLINE __m256i narrow_f16(Vec x) {
  return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
}
DS_TARGET_AVX512 DS_INLINE __m256i narrow_bf16(Vec x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  const __m512i all = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(all, 16));
}

DS_TARGET_AVX512 DS_INLINE Vec load(const float* p) {
  return _mm512_loadu_ps(p);
}
DS_TARGET_AVX512 DS_INLINE Vec load(const f16* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
DS_TARGET_AVX512 DS_INLINE Vec load(const bf16* p) {
  return widen_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
DS_TARGET_AVX512 DS_INLINE void store(float* p, Vec x) {
  _mm512_storeu_ps(p, x);
}
DS_TARGET_AVX512 DS_INLINE void store(f16* p, Vec x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_f16(x));
}
DS_TARGET_AVX512 DS_INLINE void store(bf16* p, Vec x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_bf16(x));
}
DS_TARGET_AVX512 DS_INLINE Vec load(const float* p, std::int64_t n) {
  return _mm512_maskz_loadu_ps(first(n), p);
}
DS_TARGET_AVX512 DS_INLINE Vec load(const f16* p, std::int64_t n) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p));
}
DS_TARGET_AVX512 DS_INLINE Vec load(const bf16* p, std::int64_t n) {
  return widen_bf16(_mm256_maskz_loadu_epi16(first(n), p));
}
DS_TARGET_AVX512 DS_INLINE void store(float* p, Vec x, std::int64_t n) {
  _mm512_mask_storeu_ps(p, first(n), x);
}
DS_TARGET_AVX512 DS_INLINE void store(f16* p, Vec x, std::int64_t n) {
  _mm256_mask_storeu_epi16(p, first(n), narrow_f16(x));
}
DS_TARGET_AVX512 DS_INLINE void store(bf16* p, Vec x, std::int64_t n) {
  _mm256_mask_storeu_epi16(p, first(n), narrow_bf16(x));
}
template <class T>
DS_TARGET_AVX512 DS_INLINE void store_pair(T* p, Vec x, Vec y) {
  store(p, x);
  store(p + kLanes, y);
}
DS_TARGET_AVX512 DS_INLINE Vec set1(float x) {
  return _mm512_set1_ps(x);
}
DS_TARGET_AVX512 DS_INLINE Vec sqrt(Vec x) {
  return _mm512_sqrt_ps(x);
}
DS_TARGET_AVX512 DS_INLINE Vec max0(Vec x) {
  return _mm512_max_ps(_mm512_setzero_ps(), x);
}
DS_TARGET_AVX512 DS_INLINE Vec fused(Vec a, Vec b, Vec c) {
  return _mm512_fmadd_ps(a, b, c);
}
DS_TARGET_AVX512 DS_INLINE Vec signed_step(Vec x, Vec s) {
  constexpr int kAndXor = 0x6a;  // (x & sign) ^ s
  const __mmask16 moves = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_NEQ_OQ);
  return _mm512_castsi512_ps(_mm512_mask_ternarylogic_epi32(
      _mm512_castps_si512(x), moves, _mm512_castps_si512(_mm512_set1_ps(-0.0f)),
      _mm512_castps_si512(s), kAndXor));
}
DS_TARGET_AVX512 DS_INLINE Vec larger(Vec a, Vec b) {
  return _mm512_max_ps(a, b);
}
DS_TARGET_AVX512 DS_INLINE Vec smaller(Vec a, Vec b) {
  return _mm512_min_ps(a, b);
}
DS_TARGET_AVX512 DS_INLINE Vec add_exponent(Vec x, Vec n) {
  const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(n), 23);
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), exponent));
}
DS_TARGET_AVX512 DS_INLINE Vec unless_below(Vec x, Vec least, Vec y) {
  const Vec kept = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, least, _CMP_NLT_UQ), y);
  return _mm512_mask_mov_ps(kept, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x);
}

}  // namespace ds::avx512

namespace ds::avx512_bf16 {

using avx512::add_exponent;
using avx512::first;
using avx512::fused;
using avx512::kLanes;
using avx512::larger;
using avx512::max0;
using avx512::set1;
using avx512::signed_step;
using avx512::smaller;
using avx512::sqrt;
using avx512::unless_below;
using avx512::Vec;

// The instruction saves five others but reads and writes denormals as zero. They are rare, so ask
// for them with one instruction and leave them to the integer code: all paths give the same bits.
DS_TARGET_AVX512_BF16 DS_INLINE __mmask16 denormals(Vec x) {
  return _mm512_fpclass_ps_mask(x, 0x20);
}
DS_TARGET_AVX512_BF16 DS_INLINE __m256i narrow_bf16(Vec x) {
  if (__builtin_expect(denormals(x) != 0, 0)) return avx512::narrow_bf16(x);
  const __m256bh narrow = _mm512_cvtneps_pbh(x);
  __m256i bits;
  static_assert(sizeof bits == sizeof narrow);
  std::memcpy(&bits, &narrow, sizeof bits);
  return bits;
}

template <class T>
DS_TARGET_AVX512_BF16 DS_INLINE Vec load(const T* p) {
  return avx512::load(p);
}
template <class T>
DS_TARGET_AVX512_BF16 DS_INLINE Vec load(const T* p, std::int64_t n) {
  return avx512::load(p, n);
}
template <class T>
DS_TARGET_AVX512_BF16 DS_INLINE void store(T* p, Vec x) {
  avx512::store(p, x);
}
template <class T>
DS_TARGET_AVX512_BF16 DS_INLINE void store(T* p, Vec x, std::int64_t n) {
  avx512::store(p, x, n);
}
DS_TARGET_AVX512_BF16 DS_INLINE void store(bf16* p, Vec x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_bf16(x));
}
DS_TARGET_AVX512_BF16 DS_INLINE void store(bf16* p, Vec x, std::int64_t n) {
  _mm256_mask_storeu_epi16(p, first(n), narrow_bf16(x));
}
template <class T>
DS_TARGET_AVX512_BF16 DS_INLINE void store_pair(T* p, Vec x, Vec y) {
  store(p, x);
  store(p + kLanes, y);
}
// One instruction, one question about denormals and one store for both.
DS_TARGET_AVX512_BF16 DS_INLINE void store_pair(bf16* p, Vec x, Vec y) {
  const __mmask16 denormal = _kor_mask16(denormals(x), denormals(y));
  if (__builtin_expect(denormal != 0, 0)) {
    store(p, x);
    store(p + kLanes, y);
    return;
  }
  const __m512bh narrow = _mm512_cvtne2ps_pbh(y, x);
  std::memcpy(p, &narrow, sizeof narrow);
}

}  // namespace ds::avx512_bf16

#endif  // __x86_64__

#if defined(__aarch64__)
#include "simd_neon.h"
#endif

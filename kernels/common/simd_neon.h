#pragma once

// simd.h's vocabulary for 64-bit Arm, where every processor has these instructions.

#if defined(__aarch64__)

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "half.h"

namespace ds::neon {

using Vec = float32x4_t;
inline constexpr int kLanes = 4;

DS_INLINE Vec load(const float* p) {
  return vld1q_f32(p);
}
// The instruction keeps denormals and makes signalling NaN quiet, as the scalar code does.
DS_INLINE Vec load(const f16* p) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&p->bits)));
}
DS_INLINE Vec load(const bf16* p) {
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(&p->bits), 16));
}
DS_INLINE void store(float* p, Vec x) {
  vst1q_f32(p, x);
}
DS_INLINE void store(f16* p, Vec x) {
  vst1_u16(&p->bits, vreinterpret_u16_f16(vcvt_f16_f32(x)));
}
DS_INLINE void store(bf16* p, Vec x) {
  const uint32x4_t bits = vreinterpretq_u32_f32(x);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
  const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
  vst1_u16(&p->bits, vshrn_n_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet), 16));
}
// There is no masked access. A tail is at most once per tensor and thread.
template <class T>
DS_INLINE Vec load(const T* p, std::int64_t n) {
  T padded[kLanes] = {};
  std::memcpy(padded, p, static_cast<std::size_t>(n) * sizeof(T));
  return load(static_cast<const T*>(padded));
}
template <class T>
DS_INLINE void store(T* p, Vec x, std::int64_t n) {
  T padded[kLanes];
  store(static_cast<T*>(padded), x);
  std::memcpy(p, padded, static_cast<std::size_t>(n) * sizeof(T));
}
template <class T>
DS_INLINE void store_pair(T* p, Vec x, Vec y) {
  store(p, x);
  store(p + kLanes, y);
}
DS_INLINE Vec set1(float x) {
  return vdupq_n_f32(x);
}
DS_INLINE Vec sqrt(Vec x) {
  return vsqrtq_f32(x);
}
// Not FMAX: that would lose the payload of a NaN.
DS_INLINE Vec max0(Vec x) {
  return vbslq_f32(vcltzq_f32(x), vdupq_n_f32(0.0f), x);
}
DS_INLINE Vec fused(Vec a, Vec b, Vec c) {
  return vfmaq_f32(c, a, b);
}
DS_INLINE Vec signed_step(Vec x, Vec s) {
  const uint32x4_t sign = vandq_u32(vreinterpretq_u32_f32(x), vdupq_n_u32(0x80000000u));
  const Vec signed_s = vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(s), sign));
  const uint32x4_t moves = vcagtq_f32(x, vdupq_n_f32(0.0f));  // Neither 0 nor NaN.
  return vbslq_f32(moves, signed_s, x);
}
DS_INLINE Vec larger(Vec a, Vec b) {
  return vbslq_f32(vcgtq_f32(a, b), a, b);
}
DS_INLINE Vec smaller(Vec a, Vec b) {
  return vbslq_f32(vcltq_f32(a, b), a, b);
}
DS_INLINE Vec add_exponent(Vec x, Vec n) {
  const uint32x4_t exponent = vshlq_n_u32(vreinterpretq_u32_f32(n), 23);
  return vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(x), exponent));
}
DS_INLINE Vec unless_below(Vec x, Vec least, Vec y) {
  const Vec kept = vbslq_f32(vcltq_f32(x, least), vdupq_n_f32(0.0f), y);
  return vbslq_f32(vceqq_f32(x, x), kept, x);
}

}  // namespace ds::neon

#endif

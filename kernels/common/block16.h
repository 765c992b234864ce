// Sixteen floats at a time, for the code path DS_ISA: what ops with sums over a row are written in.
// The number is the same on every path, so a sum is made of the same sixteen partial sums in the
// same order, and all paths give the same bits. The compiler makes one, two or four registers of a
// block. No #pragma once: for_each_isa.h compiles it for each path, as part of an op's kernel.h.
//
//   load16(p), store16(p, x)        float, f16 or bf16, at any alignment
//   load16(p, n), store16(p, x, n)  the first n <= 16; lanes without an element load as 0
//   splat(x), sum16(x), max16(x), max_of(x, y), in_block(i, end)
//   exp16(x)            within 2 ulp, denormals too; NaN stays NaN
//   sigmoid16(x), tanh_gelu16(x)    x / (1 + e^-2u), u = sqrt(2/pi)·(x + 0.044715·x³)
//   erf_gelu16(x)       x · Phi(x); within 2e-7·|x|

// All of it is inlined, so no block is ever returned by a call, whose convention depends on the
// path. For the whole file that includes this: the compiler speaks at its end.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace ds::DS_ISA {
namespace {

using Block __attribute__((vector_size(64))) = float;
using BlockInt __attribute__((vector_size(64))) = std::int32_t;
[[maybe_unused]] constexpr std::int64_t kBlock = 16;

template <class T>
DS_TARGET DS_INLINE Block load16(const T* p) {
  Block x;
  for (int i = 0; i < kBlock; i += kLanes) {
    const Vec part = load(p + i);
    std::memcpy(reinterpret_cast<char*>(&x) + 4 * i, &part, sizeof part);
  }
  return x;
}
template <class T>
DS_TARGET DS_INLINE void store16(T* p, const Block& x) {
  for (int i = 0; i < kBlock; i += kLanes) {
    Vec part;
    std::memcpy(&part, reinterpret_cast<const char*>(&x) + 4 * i, sizeof part);
    store(p + i, part);
  }
}
template <class T>
DS_TARGET DS_INLINE Block load16(const T* p, std::int64_t n) {
  if (n == kBlock) return load16(p);
  T padded[kBlock] = {};
  std::memcpy(padded, p, static_cast<std::size_t>(n) * sizeof(T));
  return load16(static_cast<const T*>(padded));
}
template <class T>
DS_TARGET DS_INLINE void store16(T* p, const Block& x, std::int64_t n) {
  if (n == kBlock) return store16(p, x);
  T padded[kBlock];
  store16(static_cast<T*>(padded), x);
  std::memcpy(p, padded, static_cast<std::size_t>(n) * sizeof(T));
}

DS_TARGET DS_INLINE Block splat(float x) {
  return Block{} + x;
}
DS_TARGET DS_INLINE float sum16(const Block& x) {
  float part[kBlock];
  std::memcpy(part, &x, sizeof part);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) part[i] += part[i + width];
  }
  return part[0];
}
// NaN if one of them is.
DS_TARGET DS_INLINE float max_of(float a, float b) {
  return a < b || b != b ? b : a;
}
DS_TARGET DS_INLINE float max16(const Block& x) {
  float part[kBlock];
  std::memcpy(part, &x, sizeof part);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) part[i] = max_of(part[i], part[i + width]);
  }
  return part[0];
}
// How many of the elements from i on are in i's block.
DS_TARGET DS_INLINE std::int64_t in_block(std::int64_t i, std::int64_t end) {
  return end - i < kBlock ? end - i : kBlock;
}

// e^x = 2^n · e^r with |r| <= ln(2)/2: n from adding and taking away 1.5·2^23, ln(2) in two parts,
// and the polynomial of degree 7 of Cephes' expf. 2^n is applied in halves, so that neither
// leaves the floats before the result does.
DS_TARGET DS_INLINE Block exp16(const Block& power) {
  Block x = power < splat(-104.0f) ? splat(-104.0f) : power;
  x = x > splat(89.0f) ? splat(89.0f) : x;
  const Block shift = splat(12582912.0f);
  const Block shifted = x * 1.44269504f + shift;
  const Block n = shifted - shift;
  const Block r = x - n * 0.693359375f - n * -2.12194440e-4f;
  Block y = splat(1.9875691500e-4f);
  y = y * r + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * r * r + r + 1.0f;
  const BlockInt exponent = (BlockInt)shifted - (BlockInt)shift;
  const BlockInt half = exponent >> 1;
  y = y * (Block)((half + 127) << 23);
  return y * (Block)((exponent - half + 127) << 23);
}
DS_TARGET DS_INLINE Block sigmoid16(const Block& x) {
  return 1.0f / (exp16(-x) + 1.0f);
}
DS_TARGET DS_INLINE Block tanh_gelu16(const Block& x) {
  const Block twice_u = 1.5957691216f * (x + 0.044715f * (x * x * x));
  return x * sigmoid16(twice_u);
}
// erfc(z) for z >= 0 by the Chebyshev fit of Press et al., "Numerical Recipes", 6.2: relative error
// below 1.2e-7 everywhere, which no 1 + erf() has for negative x.
DS_TARGET DS_INLINE Block erf_gelu16(const Block& x) {
  const Block z = (x < splat(0.0f) ? -x : x) * 0.70710678118f;
  const Block t = 1.0f / (z * 0.5f + 1.0f);
  Block y = splat(0.17087277f);
  y = y * t - 0.82215223f;
  y = y * t + 1.48851587f;
  y = y * t - 1.13520398f;
  y = y * t + 0.27886807f;
  y = y * t - 0.18628806f;
  y = y * t + 0.09678418f;
  y = y * t + 0.37409196f;
  y = y * t + 1.00002368f;
  y = y * t - 1.26551223f;
  const Block half_erfc = 0.5f * (t * exp16(y - z * z));
  return x * (x < splat(0.0f) ? half_erfc : 1.0f - half_erfc);
}

}  // namespace
}  // namespace ds::DS_ISA

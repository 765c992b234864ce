// Numbers and their products for the code path DS_ISA: what attention computes with. Included by
// cpu_attention_kernel.h; no #pragma once, as for_each_isa.h compiles it once per path.

#include "simd_exp.h"

namespace ds::DS_ISA {
namespace {

using attention::Real;

// Arithmetic in float: vectors.
struct Floats {
  using Number = float;
  using V = Vec;
  static constexpr int kWidth = kLanes;
  // Of a product: rows and vectors of the result that are held in registers.
  static constexpr int kRows = kLanes == 16 ? 8 : 4;
  static constexpr int kVectors = kLanes == 1 ? 4 : 2;
  DS_TARGET static DS_INLINE V load(const float* p) { return DS_ISA::load(p); }
  DS_TARGET static DS_INLINE void store(float* p, V x) { DS_ISA::store(p, x); }
  DS_TARGET static DS_INLINE V set1(float x) { return DS_ISA::set1(x); }
  DS_TARGET static DS_INLINE V larger(V a, V b) { return DS_ISA::larger(a, b); }
  DS_TARGET static DS_INLINE V exp(V x) { return DS_ISA::exp(x); }
  DS_TARGET static DS_INLINE V fused(V a, V b, V c) { return DS_ISA::fused(a, b, c); }

  template <class T>
  DS_TARGET static void widen_as(const void* from, std::int64_t at, std::int64_t n, float* to) {
    const T* p = static_cast<const T*>(from) + at;
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) DS_ISA::store(to + i, DS_ISA::load(p + i));
    if (i < n) DS_ISA::store(to + i, DS_ISA::load(p + i, n - i), n - i);
  }
  template <class T>
  DS_TARGET static void narrow_as(const float* from, std::int64_t n, void* to, std::int64_t at) {
    T* p = static_cast<T*>(to) + at;
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) DS_ISA::store(p + i, DS_ISA::load(from + i));
    if (i < n) DS_ISA::store(p + i, DS_ISA::load(from + i, n - i), n - i);
  }
  static void widen(Real type, const void* from, std::int64_t at, std::int64_t n, float* to) {
    if (type == Real::f16) return widen_as<f16>(from, at, n, to);
    if (type == Real::bf16) return widen_as<bf16>(from, at, n, to);
    widen_as<float>(from, at, n, to);
  }
  static void narrow(Real type, const float* from, std::int64_t n, void* to, std::int64_t at) {
    if (type == Real::f16) return narrow_as<f16>(from, n, to, at);
    if (type == Real::bf16) return narrow_as<bf16>(from, n, to, at);
    narrow_as<float>(from, n, to, at);
  }
};

// And in double, one by one: there to check gradients with.
struct Doubles {
  using Number = double;
  using V = double;
  static constexpr int kWidth = 1, kRows = 4, kVectors = 4;
  static DS_INLINE V load(const double* p) { return *p; }
  static DS_INLINE void store(double* p, V x) { *p = x; }
  static DS_INLINE V set1(double x) { return x; }
  static DS_INLINE V larger(V a, V b) { return a > b ? a : b; }
  static DS_INLINE V exp(V x) { return std::exp(x); }
  static DS_INLINE V fused(V a, V b, V c) { return a * b + c; }
  static void widen(Real, const void* from, std::int64_t at, std::int64_t n, double* to) {
    std::copy_n(static_cast<const double*>(from) + at, n, to);
  }
  static void narrow(Real, const double* from, std::int64_t n, void* to, std::int64_t at) {
    std::copy_n(from, n, static_cast<double*>(to) + at);
  }
};

// c[kR, kV vectors] (+)= a·b: element (i, t) of a lies at i·a_row + t·a_step.
template <class L, int kR, int kV>
DS_TARGET DS_INLINE void product_part(std::int64_t k, const typename L::Number* a,
                                      std::int64_t a_row, std::int64_t a_step,
                                      const typename L::Number* b, std::int64_t b_row,
                                      typename L::Number* c, std::int64_t c_row, bool add) {
  typename L::V sum[kR][kV];
#pragma GCC unroll 16
  for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kV; ++v) {
      sum[r][v] = add ? L::load(c + r * c_row + v * L::kWidth) : L::set1(0);
    }
  }
  for (std::int64_t t = 0; t < k; ++t) {
    typename L::V row[kV];
#pragma GCC unroll 16
    for (int v = 0; v < kV; ++v) row[v] = L::load(b + t * b_row + v * L::kWidth);
#pragma GCC unroll 16
    for (int r = 0; r < kR; ++r) {
      const typename L::V factor = L::set1(a[r * a_row + t * a_step]);
#pragma GCC unroll 16
      for (int v = 0; v < kV; ++v) sum[r][v] = L::fused(factor, row[v], sum[r][v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kV; ++v) L::store(c + r * c_row + v * L::kWidth, sum[r][v]);
  }
}

// c[m, n] (+)= a[m, k]·b[k, n]; n a multiple of 16: tiles are padded to that.
template <class L>
DS_TARGET void product(std::int64_t m, std::int64_t n, std::int64_t k, const typename L::Number* a,
                       std::int64_t a_row, std::int64_t a_step, const typename L::Number* b,
                       std::int64_t b_row, typename L::Number* c, std::int64_t c_row, bool add) {
  constexpr std::int64_t kWide = L::kVectors * L::kWidth, kLong = 4 * L::kWidth;
  std::int64_t i = 0;
  for (; i + L::kRows <= m; i += L::kRows) {
    std::int64_t j = 0;
    for (; j + kWide <= n; j += kWide) {
      product_part<L, L::kRows, L::kVectors>(k, a + i * a_row, a_row, a_step, b + j, b_row,
                                             c + i * c_row + j, c_row, add);
    }
    for (; j < n; j += L::kWidth) {
      product_part<L, L::kRows, 1>(k, a + i * a_row, a_row, a_step, b + j, b_row, c + i * c_row + j,
                                   c_row, add);
    }
  }
  for (; i < m; ++i) {
    std::int64_t j = 0;
    for (; j + kLong <= n; j += kLong) {
      product_part<L, 1, 4>(k, a + i * a_row, a_row, a_step, b + j, b_row, c + i * c_row + j, c_row,
                            add);
    }
    for (; j < n; j += L::kWidth) {
      product_part<L, 1, 1>(k, a + i * a_row, a_row, a_step, b + j, b_row, c + i * c_row + j, c_row,
                            add);
    }
  }
}

constexpr int kPlaces = 16;  // Of a sum along a row.

// The sum of the places.
template <class L>
DS_TARGET DS_INLINE typename L::Number sum_of(const typename L::V (&parts)[kPlaces / L::kWidth]) {
  typename L::Number places[kPlaces];
  for (int u = 0; u < kPlaces / L::kWidth; ++u) L::store(places + u * L::kWidth, parts[u]);
  for (int half = kPlaces / 2; half > 0; half /= 2) {
    for (int t = 0; t < half; ++t) places[t] += places[t + half];
  }
  return places[0];
}

// Σ x·y over n elements, a multiple of 16.
template <class L>
DS_TARGET DS_INLINE typename L::Number dot(const typename L::Number* x, const typename L::Number* y,
                                           std::int64_t n) {
  constexpr int kParts = kPlaces / L::kWidth;
  typename L::V parts[kParts];
  for (auto& part : parts) part = L::set1(0);
  for (std::int64_t d = 0; d < n; d += kPlaces) {
    for (int u = 0; u < kParts; ++u) {
      const std::int64_t at = d + u * L::kWidth;
      parts[u] = L::fused(L::load(x + at), L::load(y + at), parts[u]);
    }
  }
  return sum_of<L>(parts);
}

}  // namespace
}  // namespace ds::DS_ISA

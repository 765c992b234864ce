// Attention for the code path DS_ISA: see cpu_attention.h, which compiles it, for the plan.
//
// Arithmetic runs on tiles of floats that stay in the first caches. In every product the lanes are
// neighbours in the result, and each element is summed in the order of the inner index; sums of a
// row go to 16 places whatever the width. So all paths give the same bits.

#include "simd_exp.h"

namespace ds::DS_ISA {
namespace {

using attention::Gradients;
using attention::Problem;
using attention::Real;
using attention::Rows;

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
      for (int v = 0; v < kV; ++v) sum[r][v] = sum[r][v] + factor * row[v];
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kV; ++v) L::store(c + r * c_row + v * L::kWidth, sum[r][v]);
  }
}

// c[m, n] (+)= a[m, k]·b[k, n]; m a multiple of 8, n of 16: tiles are padded to that.
template <class L>
DS_TARGET void product(std::int64_t m, std::int64_t n, std::int64_t k, const typename L::Number* a,
                       std::int64_t a_row, std::int64_t a_step, const typename L::Number* b,
                       std::int64_t b_row, typename L::Number* c, std::int64_t c_row, bool add) {
  constexpr std::int64_t kWide = L::kVectors * L::kWidth;
  for (std::int64_t i = 0; i < m; i += L::kRows) {
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
}

template <class L>
struct Worker {
  using Number = typename L::Number;
  static constexpr Real kWide = sizeof(Number) == 4 ? Real::f32 : Real::f64;
  static constexpr int kPlaces = 16;  // Of a sum over a row.

  const Problem& p;
  const attention::Plan& plan;
  const std::int64_t tile, depth;  // Padded: keys of a tile to 16, columns of q, k and v to 16.
  Number *q, *k, *kt, *v, *vt, *grad, *scores, *slopes, *sum, *sum2, *keys, *pair;

  Worker(const Problem& problem, const attention::Plan& plan_, Number* space)
      : p(problem), plan(plan_), tile(plan_.padded_tile), depth(plan_.padded_dim) {
    const auto take = [&space](std::int64_t n) { return std::exchange(space, space + n); };
    const std::int64_t panel = tile * depth;
    q = take(panel), k = take(panel), kt = take(panel), v = take(panel), vt = take(panel);
    grad = take(panel), sum = take(panel), sum2 = take(panel);
    scores = take(tile * tile), slopes = take(tile * tile);
    keys = take(6 * tile);
    pair = space;
  }
  static std::int64_t space(const attention::Plan& plan) {
    return 8 * plan.padded_tile * plan.padded_dim + 2 * plan.padded_tile * plan.padded_tile +
           6 * plan.padded_tile + plan.pair_rows * plan.padded_tile;
  }

  std::int64_t queries_at(std::int64_t i) const {
    return std::min(plan.tile, p.queries - i * plan.tile);
  }
  std::int64_t keys_at(std::int64_t j) const { return std::min(plan.tile, p.keys - j * plan.tile); }

  // Rows of q, k, v, … as numbers, zeros behind them up to the padded tile.
  void read(const Rows& rows, const attention::Slice& s, std::int64_t first, std::int64_t count,
            Number* to) const {
    for (std::int64_t r = 0; r < count; ++r) {
      L::widen(p.type, rows.data, s.at(rows) + (first + r) * rows.row_stride, p.dim,
               to + r * depth);
      std::fill(to + r * depth + p.dim, to + (r + 1) * depth, Number(0));
    }
    std::fill(to + count * depth, to + tile * depth, Number(0));
  }
  void write(const Rows& rows, const attention::Slice& s, std::int64_t first, std::int64_t count,
             const Number* from) const {
    for (std::int64_t r = 0; r < count; ++r) {
      L::narrow(p.type, from + r * depth, p.dim, rows.data,
                s.at(rows) + (first + r) * rows.row_stride);
    }
  }
  void transpose(const Number* from, Number* to) const {
    for (std::int64_t r = 0; r < tile; ++r) {
      for (std::int64_t d = 0; d < p.dim; ++d) to[d * tile + r] = from[r * depth + d];
    }
  }

  // k as columns, and what is added to every score of a key: its bias, −∞ where no key is.
  void read_keys(const attention::Slice& s, std::int64_t j) const {
    const std::int64_t count = keys_at(j);
    read(p.k, s, j * plan.tile, count, k);
    transpose(k, kt);
    std::fill_n(keys, count, Number(0));
    if (p.key_bias.data != nullptr) {
      L::widen(p.type, p.key_bias.data, s.at(p.key_bias) + j * plan.tile, count, keys);
    }
    std::fill(keys + count, keys + tile, -std::numeric_limits<Number>::infinity());
  }

  DS_TARGET void add_rows(const Rows& rows, const attention::Slice& s, std::int64_t i,
                          std::int64_t j) const {
    if (rows.data == nullptr) return;
    Number* one = keys + tile;
    std::fill_n(one, tile, Number(0));
    for (std::int64_t r = 0; r < queries_at(i); ++r) {
      L::widen(p.type, rows.data,
               s.at(rows) + (i * plan.tile + r) * rows.row_stride + j * plan.tile, keys_at(j), one);
      Number* row = scores + r * tile;
      for (std::int64_t c = 0; c < tile; c += L::kWidth) {
        L::store(row + c, L::load(row + c) + L::load(one + c));
      }
    }
  }

  DS_TARGET void compute_scores(const attention::Slice& s, std::int64_t i, std::int64_t j) const {
    const std::int64_t padded = (queries_at(i) + 7) / 8 * 8;
    product<L>(padded, tile, p.dim, q, depth, 1, kt, tile, scores, tile, false);
    const typename L::V scale = L::set1(static_cast<Number>(p.scale));
    for (std::int64_t r = 0; r < padded; ++r) {
      Number* row = scores + r * tile;
      for (std::int64_t c = 0; c < tile; c += L::kWidth) {
        L::store(row + c, L::load(row + c) * scale + L::load(keys + c));
      }
    }
    add_rows(p.pair_bias, s, i, j);
    add_rows(p.pair_mask, s, i, j);
  }

  DS_TARGET Number largest(const Number* row) const {
    typename L::V most = L::load(row);
    for (std::int64_t c = L::kWidth; c < tile; c += L::kWidth) {
      most = L::larger(L::load(row + c), most);
    }
    Number places[L::kWidth];
    L::store(places, most);
    return *std::max_element(places, places + L::kWidth);
  }
  // The row becomes e^(row − shift); its sum.
  DS_TARGET Number exponentiate(Number* row, Number shift) const {
    constexpr int kParts = kPlaces / L::kWidth;
    typename L::V sums[kParts];
    for (auto& part : sums) part = L::set1(0);
    for (std::int64_t c = 0; c < tile; c += kPlaces) {
      for (int u = 0; u < kParts; ++u) {
        Number* at = row + c + u * L::kWidth;
        const typename L::V e = L::exp(L::load(at) - L::set1(shift));
        L::store(at, e);
        sums[u] = sums[u] + e;
      }
    }
    Number places[kPlaces], total = 0;
    for (int u = 0; u < kParts; ++u) L::store(places + u * L::kWidth, sums[u]);
    for (const Number x : places) total += x;
    return total;
  }
  DS_TARGET void multiply_row(Number* row, Number factor) const {
    for (std::int64_t d = 0; d < depth; d += L::kWidth) {
      L::store(row + d, L::load(row + d) * L::set1(factor));
    }
  }

  // One tile of queries over all its keys: the largest score so far is subtracted, and what was
  // summed before a larger one came is brought to it.
  DS_TARGET void forward(std::int64_t unit) const {
    const attention::Slice s = plan.slice_of(unit / plan.query_tiles);
    const std::int64_t i = unit % plan.query_tiles, count = queries_at(i);
    constexpr Number kNone = -std::numeric_limits<Number>::infinity();
    Number *most = keys + 2 * tile, *total = keys + 3 * tile;
    read(p.q, s, i * plan.tile, count, q);
    std::fill_n(sum, tile * depth, Number(0));
    std::fill_n(most, count, kNone);
    std::fill_n(total, count, Number(0));
    for (const std::int64_t j : plan.key_tiles_of(s, i)) {
      read_keys(s, j);
      read(p.v, s, j * plan.tile, keys_at(j), v);
      compute_scores(s, i, j);
      for (std::int64_t r = 0; r < count; ++r) {
        const Number now = std::max(most[r], largest(scores + r * tile));
        const Number shift = now == kNone ? Number(0) : now;
        if (now > most[r] && most[r] != kNone) {
          Number factor[kPlaces] = {most[r] - shift};
          L::store(factor, L::exp(L::load(factor)));
          total[r] *= factor[0];
          multiply_row(sum + r * depth, factor[0]);
        }
        most[r] = now;
        total[r] += exponentiate(scores + r * tile, shift);
      }
      product<L>((count + 7) / 8 * 8, depth, keys_at(j), scores, tile, 1, v, depth, sum, depth,
                 true);
    }
    for (std::int64_t r = 0; r < count; ++r) {
      multiply_row(sum + r * depth, total[r] == 0 ? Number(0) : 1 / total[r]);
      // In double, so that it is the same number with any C library.
      most[r] = static_cast<Number>(most[r] + std::log(static_cast<double>(total[r])));
    }
    write(p.out, s, i * plan.tile, count, sum);
    L::narrow(kWide, most, count, p.lse.data, s.at(p.lse) + i * plan.tile);
  }

  // delta = Σ out·grad of each query.
  DS_TARGET void deltas(const Gradients& g, std::int64_t unit) const {
    const attention::Slice s = plan.slice_of(unit / plan.query_tiles);
    const std::int64_t i = unit % plan.query_tiles, count = queries_at(i);
    read(p.out, s, i * plan.tile, count, q);
    read(g.out, s, i * plan.tile, count, grad);
    Number* delta = keys + 2 * tile;
    for (std::int64_t r = 0; r < count; ++r) {
      delta[r] = 0;
      for (std::int64_t d = 0; d < p.dim; ++d) delta[r] += q[r * depth + d] * grad[r * depth + d];
    }
    L::narrow(kWide, delta, count, g.delta.data, s.at(g.delta) + i * plan.tile);
  }

  // scores = e^(s − lse), slopes = their gradients before the softmax; rows behind the last are not
  // touched by what follows.
  DS_TARGET void probabilities(const Gradients& g, const attention::Slice& s, std::int64_t i,
                               std::int64_t j) const {
    const std::int64_t count = queries_at(i);
    Number *lse = keys + 2 * tile, *delta = keys + 3 * tile;
    L::widen(kWide, p.lse.data, s.at(p.lse) + i * plan.tile, count, lse);
    L::widen(kWide, g.delta.data, s.at(g.delta) + i * plan.tile, count, delta);
    compute_scores(s, i, j);
    product<L>((count + 7) / 8 * 8, tile, p.dim, grad, depth, 1, vt, tile, slopes, tile, false);
    for (std::int64_t r = 0; r < count; ++r) {
      // A query without a key has lse = −∞: with +∞ all its probabilities are 0.
      const Number shift = std::isinf(lse[r]) ? std::fabs(lse[r]) : lse[r];
      Number *row = scores + r * tile, *slope = slopes + r * tile;
      for (std::int64_t c = 0; c < tile; c += L::kWidth) {
        const typename L::V e = L::exp(L::load(row + c) - L::set1(shift));
        L::store(row + c, e);
        L::store(slope + c, e * (L::load(slope + c) - L::set1(delta[r])));
      }
    }
  }

  // One tile of keys over all queries, of every slice that shares a gradient of the pair bias: what
  // is summed over queries is summed here, by one thread, in order.
  DS_TARGET void backward_keys(const Gradients& g, std::int64_t unit, Number* key_sums) const {
    const std::int64_t j = unit % plan.key_tiles, count = keys_at(j);
    const std::int64_t group = unit / plan.key_tiles, padded = (count + 7) / 8 * 8;
    if (plan.pair_rows > 0) std::fill_n(pair, plan.pair_rows * tile, Number(0));
    attention::Slice s{};
    for (std::int64_t member = 0; member < plan.members; ++member) {
      s = plan.member_of(group, member);
      read_keys(s, j);
      read(p.v, s, j * plan.tile, count, v);
      transpose(v, vt);
      Number* of_keys = keys + 4 * tile;
      std::fill_n(of_keys, tile, Number(0));
      std::fill_n(sum, tile * depth, Number(0));
      std::fill_n(sum2, tile * depth, Number(0));
      for (const std::int64_t i : plan.query_tiles_of(s, j)) {
        const std::int64_t rows = queries_at(i);
        read(p.q, s, i * plan.tile, rows, q);
        read(g.out, s, i * plan.tile, rows, grad);
        probabilities(g, s, i, j);
        product<L>(padded, depth, rows, scores, 1, tile, grad, depth, sum2, depth, true);
        product<L>(padded, depth, rows, slopes, 1, tile, q, depth, sum, depth, true);
        if (key_sums != nullptr) {
          for (std::int64_t r = 0; r < rows; ++r) add_row(of_keys, slopes + r * tile);
        }
        if (plan.pair_rows > 0) {
          for (std::int64_t r = 0; r < rows; ++r) {
            add_row(pair + (i * plan.tile + r) * tile, slopes + r * tile);
          }
        }
      }
      for (std::int64_t r = 0; r < count; ++r) {
        multiply_row(sum + r * depth, static_cast<Number>(p.scale));
      }
      write(g.k, s, j * plan.tile, count, sum);
      write(g.v, s, j * plan.tile, count, sum2);
      if (key_sums != nullptr) {
        std::copy_n(of_keys, count, key_sums + plan.number_of(s) * p.keys + j * plan.tile);
      }
    }
    if (plan.pair_rows > 0 && plan.members > 0) {
      for (const std::int64_t i : plan.query_tiles_of(s, j)) {
        for (std::int64_t r = i * plan.tile; r < i * plan.tile + queries_at(i); ++r) {
          L::narrow(g.bias_type, pair + r * tile, count, g.pair_bias.data,
                    s.at(g.pair_bias) + r * g.pair_bias.row_stride + j * plan.tile);
        }
      }
    }
  }
  DS_TARGET void add_row(Number* to, const Number* row) const {
    for (std::int64_t c = 0; c < tile; c += L::kWidth) {
      L::store(to + c, L::load(to + c) + L::load(row + c));
    }
  }

  DS_TARGET void backward_queries(const Gradients& g, std::int64_t unit) const {
    const attention::Slice s = plan.slice_of(unit / plan.query_tiles);
    const std::int64_t i = unit % plan.query_tiles, count = queries_at(i);
    read(p.q, s, i * plan.tile, count, q);
    read(g.out, s, i * plan.tile, count, grad);
    std::fill_n(sum, tile * depth, Number(0));
    for (const std::int64_t j : plan.key_tiles_of(s, i)) {
      read_keys(s, j);
      read(p.v, s, j * plan.tile, keys_at(j), v);
      transpose(v, vt);
      probabilities(g, s, i, j);
      product<L>((count + 7) / 8 * 8, depth, keys_at(j), slopes, tile, 1, k, depth, sum, depth,
                 true);
    }
    for (std::int64_t r = 0; r < count; ++r) {
      multiply_row(sum + r * depth, static_cast<Number>(p.scale));
    }
    write(g.q, s, i * plan.tile, count, sum);
  }

  // The gradient of the key bias: the sums of slices that share it, in order.
  static void reduce_keys(const Problem& p, const attention::Plan& plan, const Gradients& g,
                          const Number* key_sums) {
    std::vector<Number> total(static_cast<std::size_t>(p.keys));
    std::array<std::int64_t, 3> own = p.slices, shared = {1, 1, 1};
    for (std::size_t d = 0; d < 3; ++d) {
      if (g.key_bias.slice[d] == 0) std::swap(own[d], shared[d]);
    }
    const std::int64_t rows = own[0] * own[1] * own[2];
    for (std::int64_t row = 0; row < rows; ++row) {
      attention::Slice s{};
      const attention::Slice first = attention::slice_at(own, row);
      std::fill(total.begin(), total.end(), Number(0));
      for (std::int64_t m = 0; m < shared[0] * shared[1] * shared[2]; ++m) {
        const attention::Slice more = attention::slice_at(shared, m);
        for (std::size_t d = 0; d < 3; ++d) s.index[d] = first.index[d] + more.index[d];
        const Number* sums = key_sums + plan.number_of(s) * p.keys;
        for (std::size_t c = 0; c < total.size(); ++c) total[c] += sums[c];
      }
      L::narrow(g.bias_type, total.data(), p.keys, g.key_bias.data, first.at(g.key_bias));
    }
  }
};

}  // namespace
}  // namespace ds::DS_ISA

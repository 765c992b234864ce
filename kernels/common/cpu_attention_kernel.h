// Attention for the code path DS_ISA: see cpu_attention.h, which compiles it, for the plan.
//
// Arithmetic runs on tiles of floats that stay in the first caches. In every product the lanes are
// neighbours in the result, and each element is summed in the order of the inner index by fused
// multiply-adds, rounded once; other sums go to 16 places whatever the width. So all paths give the
// same bits.

#include "cpu_attention_product.h"

namespace ds::DS_ISA {
namespace {

using attention::Gradients;
using attention::Problem;
using attention::Rows;

template <class L>
struct Worker {
  using Number = typename L::Number;
  static constexpr Real kWide = sizeof(Number) == 4 ? Real::f32 : Real::f64;
  static constexpr Number kNone = -std::numeric_limits<Number>::infinity();

  // Rows in floats: in a buffer, or where they are.
  struct Panel {
    const Number* data;
    std::int64_t row;
  };

  const Problem& p;
  const attention::Plan& plan;
  const std::int64_t tile, depth;  // Padded: keys of a tile to 16, columns of q, k and v to 16.
  // Of the queries of a unit, but for k, kt, v, vt and sum2, which are of a tile of keys.
  Number *q, *grad, *sum, *k, *kt, *v, *vt, *sum2, *scores, *slopes;
  Number *most, *totals, *delta;        // Of each query; backward, most is lse.
  Number *bias, *one, *kept, *of_keys;  // Of each key.
  Number *pair, *of_queries;

  Worker(const Problem& problem, const attention::Plan& plan_, Number* space, bool backward)
      : p(problem), plan(plan_), tile(plan_.padded_tile), depth(plan_.padded_dim) {
    const auto take = [&space](std::int64_t n) { return std::exchange(space, space + n); };
    const std::int64_t panel = tile * depth, queries = queries_of(plan);
    q = take(queries * depth), sum = take(std::max(queries, backward ? tile : 0) * depth);
    k = take(panel), kt = take(panel), v = take(panel), scores = take(tile * tile);
    most = take(queries), totals = take(queries * kPlaces);
    bias = take(tile), one = take(tile), kept = take(tile);
    if (!backward) return;
    grad = take(queries * depth), vt = take(panel), sum2 = take(panel), slopes = take(tile * tile);
    delta = take(queries), of_keys = take(tile);
    pair = take(plan.pair_rows * tile), of_queries = space;
  }
  // Whole vectors of queries.
  static std::int64_t queries_of(const attention::Plan& plan) {
    return (std::max(plan.rows, std::min(plan.tile, plan.p.queries)) + 15) / 16 * 16;
  }
  static std::int64_t space(const attention::Plan& plan, bool backward) {
    const std::int64_t tile = plan.padded_tile, depth = plan.padded_dim, queries = queries_of(plan);
    const std::int64_t forward =
        2 * queries * depth + 3 * tile * depth + tile * tile + queries * (1 + kPlaces) + 3 * tile;
    if (!backward) return forward;
    return forward + (queries + 3 * tile) * depth + tile * tile + queries + tile +
           plan.pair_rows * tile + (plan.one_pass ? plan.members * plan.p.queries * depth : 0);
  }

  // Rows are far apart, where no processor expects them: without this, what a call takes is mostly
  // waiting for the first read of short ones.
  static constexpr std::int64_t kAhead = 8;
  void prefetch(const void* data, std::int64_t at) const {
    const std::int64_t size = p.type == Real::f64 ? 8 : p.type == Real::f32 ? 4 : 2;
    const char* row = static_cast<const char*>(data) + at * size;
    for (std::int64_t i = 0; i < p.dim * size; i += 64) __builtin_prefetch(row + i);
  }
  // Rows of q, k, v, … as floats, zeros behind their columns.
  void read(const Rows& rows, const attention::Slice& s, std::int64_t first, std::int64_t count,
            Number* to) const {
    const std::int64_t begin = s.at(rows) + first * rows.row_stride;
    for (std::int64_t r = 0; r < count; ++r) {
      if (r + kAhead < count) prefetch(rows.data, begin + (r + kAhead) * rows.row_stride);
      L::widen(p.type, rows.data, begin + r * rows.row_stride, p.dim, to + r * depth);
      std::fill(to + r * depth + p.dim, to + (r + 1) * depth, Number(0));
    }
  }
  // Of a tile of keys. What is used by many queries is copied: rows at the stride of a tensor would
  // fall into the same places of a cache.
  Panel read_tile(const Rows& rows, const attention::Slice& s, std::int64_t j, Number* to) const {
    if (plan.few && p.type == kWide && p.dim == depth) {
      return {static_cast<const Number*>(rows.data) + s.at(rows) + j * plan.tile * rows.row_stride,
              rows.row_stride};
    }
    read(rows, s, j * plan.tile, plan.keys_at(j), to);
    return {to, depth};
  }
  void write(const Rows& rows, const attention::Slice& s, std::int64_t first, std::int64_t count,
             const Number* from) const {
    for (std::int64_t r = 0; r < count; ++r) {
      L::narrow(p.type, from + r * depth, p.dim, rows.data,
                s.at(rows) + (first + r) * rows.row_stride);
    }
  }
  // Columns of the first `count` rows, zeros behind them. Blocks of 16, which stay in few lines.
  void transpose(const Panel& from, std::int64_t count, Number* to) const {
    for (std::int64_t r = 0; r < count; r += 16) {
      const std::int64_t end = std::min(r + 16, count);
      for (std::int64_t d = 0; d < p.dim; ++d) {
        Number* column = to + d * tile;
        for (std::int64_t i = r; i < end; ++i) column[i] = from.data[i * from.row + d];
        for (std::int64_t i = end; i < r + 16; ++i) column[i] = 0;
      }
    }
  }
  // Keys of a tile in whole vectors: what of a row of scores is computed.
  std::int64_t wide(std::int64_t j) const { return (plan.keys_at(j) + 15) / 16 * 16; }

  // k, as columns too, and what is added to every score of a key: its bias, −∞ where no key is.
  Panel read_keys(const attention::Slice& s, std::int64_t j) const {
    const std::int64_t count = plan.keys_at(j);
    const Panel panel = read_tile(p.k, s, j, k);
    if (!plan.few) transpose(panel, count, kt);
    std::fill_n(bias, count, Number(0));
    if (p.key_bias.data != nullptr) {
      L::widen(p.type, p.key_bias.data, s.at(p.key_bias) + j * plan.tile, count, bias);
    }
    std::fill(bias + count, bias + tile, kNone);
    return panel;
  }

  DS_TARGET void add_term(const Rows& rows, const attention::Slice& s, std::int64_t query,
                          std::int64_t j, Number* row) const {
    if (rows.data == nullptr) return;
    const std::int64_t count = plan.keys_at(j);
    L::widen(p.type, rows.data, s.at(rows) + query * rows.row_stride + j * plan.tile, count, one);
    std::fill(one + count, one + wide(j), Number(0));
    for (std::int64_t c = 0; c < wide(j); c += L::kWidth) {
      L::store(row + c, L::load(row + c) + L::load(one + c));
    }
  }

  // Of the queries of tile i, which begin at `rows`.
  DS_TARGET void compute_scores(const attention::Slice& s, std::int64_t i, std::int64_t j,
                                const Number* rows, const Panel& of_k) const {
    const std::int64_t count = plan.queries_at(i), columns = wide(j), key = j * plan.tile;
    if (plan.few) {
      for (std::int64_t c = 0; c < columns; ++c) {
        for (std::int64_t r = 0; r < count; ++r) {
          scores[r * tile + c] = c < plan.keys_at(j)
                                     ? dot<L>(rows + r * depth, of_k.data + c * of_k.row, depth)
                                     : Number(0);
        }
      }
    } else {
      product<L>(count, columns, p.dim, rows, depth, 1, kt, tile, scores, tile, false);
    }
    const typename L::V scale = L::set1(static_cast<Number>(p.scale));
    for (std::int64_t r = 0; r < count; ++r) {
      const std::int64_t query = i * plan.tile + r;
      Number* row = scores + r * tile;
      for (std::int64_t c = 0; c < columns; c += L::kWidth) {
        L::store(row + c, L::load(row + c) * scale + L::load(bias + c));
      }
      add_term(p.pair_bias, s, query, j, row);
      add_term(p.pair_mask, s, query, j, row);
      const std::int64_t begin = std::clamp(plan.begin_of(query) - key, std::int64_t{0}, columns);
      const std::int64_t end = std::clamp(plan.end_of(query) - key, std::int64_t{0}, columns);
      std::fill(row, row + begin, kNone);
      std::fill(row + end, row + columns, kNone);
    }
  }

  // What the dropout multiplies the probabilities of a row by, from the first key of tile j on.
  DS_TARGET void read_kept(const attention::Slice& s, std::int64_t query, std::int64_t j) const {
    const std::int64_t row = plan.number_of(s) * p.queries + query;
    const std::int64_t group = (first_score(row, p.keys) + j * plan.tile) / 8;
    for (std::int64_t c = 0; c < wide(j); c += 64) {
      float factors[64];
      dropout_factors_of_64(p.dropout, group + c / 8, factors);
      std::copy_n(factors, std::min(std::int64_t{64}, tile - c), kept + c);
    }
  }

  DS_TARGET Number largest(const Number* row, std::int64_t columns) const {
    constexpr int kParts = kPlaces / L::kWidth;
    typename L::V parts[kParts];
    for (int u = 0; u < kParts; ++u) parts[u] = L::load(row + u * L::kWidth);
    for (std::int64_t c = kPlaces; c < columns; c += kPlaces) {
      for (int u = 0; u < kParts; ++u) {
        parts[u] = L::larger(L::load(row + c + u * L::kWidth), parts[u]);
      }
    }
    Number places[kPlaces];
    for (int u = 0; u < kParts; ++u) L::store(places + u * L::kWidth, parts[u]);
    for (int half = kPlaces / 2; half > 0; half /= 2) {
      for (int t = 0; t < half; ++t) {
        places[t] = places[t + half] > places[t] ? places[t + half] : places[t];
      }
    }
    return places[0];
  }
  // The row becomes e^(row − shift), which is added to the places of its sum.
  DS_TARGET void exponentiate(Number* row, std::int64_t columns, Number shift,
                              Number* total) const {
    constexpr int kParts = kPlaces / L::kWidth;
    typename L::V sums[kParts];
    for (int u = 0; u < kParts; ++u) sums[u] = L::load(total + u * L::kWidth);
    for (std::int64_t c = 0; c < columns; c += kPlaces) {
      for (int u = 0; u < kParts; ++u) {
        Number* at = row + c + u * L::kWidth;
        const typename L::V e = L::exp(L::load(at) - L::set1(shift));
        L::store(at, e);
        sums[u] = sums[u] + e;
      }
    }
    for (int u = 0; u < kParts; ++u) L::store(total + u * L::kWidth, sums[u]);
  }
  DS_TARGET void multiply_row(Number* row, std::int64_t columns, Number factor) const {
    for (std::int64_t d = 0; d < columns; d += L::kWidth) {
      L::store(row + d, L::load(row + d) * L::set1(factor));
    }
  }
  DS_TARGET void multiply_rows(Number* row, const Number* by, std::int64_t columns) const {
    for (std::int64_t c = 0; c < columns; c += L::kWidth) {
      L::store(row + c, L::load(row + c) * L::load(by + c));
    }
  }
  DS_TARGET Number sum_places(const Number* places) const {
    typename L::V parts[kPlaces / L::kWidth];
    for (int u = 0; u < kPlaces / L::kWidth; ++u) parts[u] = L::load(places + u * L::kWidth);
    return sum_of<L>(parts);
  }

  // Rows of one tile of queries, which begin at row `at` of the unit, over the scores of one tile
  // of keys: the largest score so far is subtracted, and what was summed before a larger one came
  // is brought to it.
  DS_TARGET void weigh(const attention::Slice& s, std::int64_t i, std::int64_t j,
                       std::int64_t at) const {
    const std::int64_t columns = wide(j);
    for (std::int64_t r = 0; r < plan.queries_at(i); ++r) {
      Number *row = scores + r * tile, &largest_so_far = most[at + r];
      Number* total = totals + (at + r) * kPlaces;
      const Number now = std::max(largest_so_far, largest(row, columns));
      const Number shift = now == kNone ? Number(0) : now;
      if (now > largest_so_far && largest_so_far != kNone) {
        Number factor[kPlaces] = {largest_so_far - shift};
        L::store(factor, L::exp(L::load(factor)));
        multiply_row(total, kPlaces, factor[0]);
        multiply_row(sum + (at + r) * depth, depth, factor[0]);
      }
      largest_so_far = now;
      exponentiate(row, columns, shift, total);
      if (p.dropout.threshold > 0) {
        read_kept(s, i * plan.tile + r, j);
        multiply_rows(row, kept, columns);
      }
    }
  }

  // The tiles of queries of a unit: the first, and behind the last.
  struct Unit {
    attention::Slice s;
    std::int64_t first, last, query, count;
  };
  Unit unit_of(std::int64_t number) const {
    const std::int64_t first = number % plan.query_units * plan.span;
    const std::int64_t last = std::min(first + plan.span, plan.query_tiles);
    const std::int64_t query = first * plan.tile;
    return {plan.slice_of(number / plan.query_units), first, last, query,
            std::min(last * plan.tile, p.queries) - query};
  }
  bool sees(const Unit& unit, std::int64_t j) const {
    for (std::int64_t i = unit.first; i < unit.last; ++i) {
      if (plan.sees(i, j)) return true;
    }
    return false;
  }

  DS_TARGET void forward(std::int64_t number) const {
    const Unit unit = unit_of(number);
    const attention::Slice& s = unit.s;
    read(p.q, s, unit.query, unit.count, q);
    std::fill_n(sum, unit.count * depth, Number(0));
    std::fill_n(most, unit.count, kNone);
    std::fill_n(totals, unit.count * kPlaces, Number(0));
    for (const std::int64_t j : plan.key_tiles_of(s, unit.first)) {
      if (!sees(unit, j)) continue;
      const Panel of_k = read_keys(s, j), of_v = read_tile(p.v, s, j, v);
      for (std::int64_t i = unit.first; i < unit.last; ++i) {
        if (!plan.sees(i, j)) continue;
        const std::int64_t at = (i - unit.first) * plan.tile;
        compute_scores(s, i, j, q + at * depth, of_k);
        weigh(s, i, j, at);
        product<L>(plan.queries_at(i), depth, plan.keys_at(j), scores, tile, 1, of_v.data, of_v.row,
                   sum + at * depth, depth, true);
      }
    }
    for (std::int64_t r = 0; r < unit.count; ++r) {
      const Number total = sum_places(totals + r * kPlaces);
      multiply_row(sum + r * depth, depth, total == 0 ? Number(0) : 1 / total);
      // In double, so that it is the same number with any C library.
      most[r] = static_cast<Number>(most[r] + std::log(static_cast<double>(total)));
    }
    write(p.out, s, unit.query, unit.count, sum);
    if (p.lse.data != nullptr) {
      L::narrow(kWide, most, unit.count, p.lse.data, s.at(p.lse) + unit.query);
    }
  }

  // delta = Σ out·grad of each query.
  DS_TARGET void deltas(const Gradients& g, std::int64_t number) const {
    const Unit unit = unit_of(number);
    read(p.out, unit.s, unit.query, unit.count, q);
    read(g.out, unit.s, unit.query, unit.count, grad);
    for (std::int64_t r = 0; r < unit.count; ++r) {
      delta[r] = dot<L>(q + r * depth, grad + r * depth, depth);
    }
    L::narrow(kWide, delta, unit.count, g.delta.data, unit.s.at(g.delta) + unit.query);
  }

  // What of queries the backward needs, from `query` on.
  void read_queries(const Gradients& g, const attention::Slice& s, std::int64_t query,
                    std::int64_t count) const {
    read(p.q, s, query, count, q);
    read(g.out, s, query, count, grad);
    L::widen(kWide, p.lse.data, s.at(p.lse) + query, count, most);
    L::widen(kWide, g.delta.data, s.at(g.delta) + query, count, delta);
  }

  // scores = dropout(e^(s − lse)), slopes = the gradients of s, for the queries of tile i, which
  // begin at row `at` of what was read.
  DS_TARGET void probabilities(const attention::Slice& s, std::int64_t i, std::int64_t j,
                               std::int64_t at, const Panel& of_k) const {
    const std::int64_t count = plan.queries_at(i), columns = wide(j);
    compute_scores(s, i, j, q + at * depth, of_k);
    product<L>(count, columns, p.dim, grad + at * depth, depth, 1, vt, tile, slopes, tile, false);
    for (std::int64_t r = 0; r < count; ++r) {
      // A query without a key has lse = −∞: with +∞ all its probabilities are 0.
      const Number lse = most[at + r], shift = std::isinf(lse) ? std::fabs(lse) : lse;
      const typename L::V middle = L::set1(delta[at + r]);
      Number *row = scores + r * tile, *slope = slopes + r * tile;
      const bool drops = p.dropout.threshold > 0;
      if (drops) {
        read_kept(s, i * plan.tile + r, j);
        multiply_rows(slope, kept, columns);
      }
      for (std::int64_t c = 0; c < columns; c += L::kWidth) {
        const typename L::V e = L::exp(L::load(row + c) - L::set1(shift));
        L::store(row + c, e);
        L::store(slope + c, e * (L::load(slope + c) - middle));
      }
      if (drops) multiply_rows(row, kept, columns);
    }
  }

  // One tile of keys over all queries, of every slice that shares a gradient of the pair bias: what
  // is summed over queries is summed here, by one thread, in order.
  DS_TARGET void backward_keys(const Gradients& g, std::int64_t group, std::int64_t j,
                               Number* key_sums) const {
    const std::int64_t count = plan.keys_at(j);
    if (plan.pair_rows > 0) std::fill_n(pair, plan.pair_rows * tile, Number(0));
    attention::Slice s{};
    for (std::int64_t member = 0; member < plan.members; ++member) {
      s = plan.member_of(group, member);
      const Panel of_k = read_keys(s, j);
      transpose(read_tile(p.v, s, j, v), count, vt);
      std::fill_n(of_keys, tile, Number(0));
      std::fill_n(sum, tile * depth, Number(0));
      std::fill_n(sum2, tile * depth, Number(0));
      for (const std::int64_t i : plan.query_tiles_of(s, j)) {
        const std::int64_t rows = plan.queries_at(i);
        if (!plan.sees(i, j)) continue;
        read_queries(g, s, i * plan.tile, rows);
        probabilities(s, i, j, 0, of_k);
        product<L>(count, depth, rows, scores, 1, tile, grad, depth, sum2, depth, true);
        product<L>(count, depth, rows, slopes, 1, tile, q, depth, sum, depth, true);
        if (key_sums != nullptr) {
          for (std::int64_t r = 0; r < rows; ++r) add_row(of_keys, slopes + r * tile, wide(j));
        }
        if (plan.pair_rows > 0) {
          for (std::int64_t r = 0; r < rows; ++r) {
            add_row(pair + (i * plan.tile + r) * tile, slopes + r * tile, wide(j));
          }
        }
        if (plan.one_pass) {
          Number* to = of_queries + (member * p.queries + i * plan.tile) * depth;
          product<L>(rows, depth, count, slopes, tile, 1, of_k.data, of_k.row, to, depth, true);
        }
      }
      multiply_row(sum, count * depth, static_cast<Number>(p.scale));
      write(g.k, s, j * plan.tile, count, sum);
      write(g.v, s, j * plan.tile, count, sum2);
      if (key_sums != nullptr) {
        std::copy_n(of_keys, count, key_sums + plan.number_of(s) * p.keys + j * plan.tile);
      }
    }
    if (plan.pair_rows > 0 && plan.members > 0) {
      for (const std::int64_t i : plan.query_tiles_of(s, j)) {
        for (std::int64_t r = i * plan.tile; r < i * plan.tile + plan.queries_at(i); ++r) {
          L::narrow(g.bias_type, pair + r * tile, count, g.pair_bias.data,
                    s.at(g.pair_bias) + r * g.pair_bias.row_stride + j * plan.tile);
        }
      }
    }
  }
  DS_TARGET void add_row(Number* to, const Number* row, std::int64_t columns) const {
    for (std::int64_t c = 0; c < columns; c += L::kWidth) {
      L::store(to + c, L::load(to + c) + L::load(row + c));
    }
  }

  // All tiles of keys in order, with the gradient of q: what backward_queries() adds up, in its
  // order.
  DS_TARGET void backward_group(const Gradients& g, std::int64_t group, Number* key_sums) const {
    std::fill_n(of_queries, plan.members * p.queries * depth, Number(0));
    for (std::int64_t j = 0; j < plan.key_tiles; ++j) backward_keys(g, group, j, key_sums);
    multiply_row(of_queries, plan.members * p.queries * depth, static_cast<Number>(p.scale));
    for (std::int64_t member = 0; member < plan.members; ++member) {
      write(g.q, plan.member_of(group, member), 0, p.queries,
            of_queries + member * p.queries * depth);
    }
  }

  DS_TARGET void backward_queries(const Gradients& g, std::int64_t number) const {
    const Unit unit = unit_of(number);
    const attention::Slice& s = unit.s;
    read_queries(g, s, unit.query, unit.count);
    std::fill_n(sum, unit.count * depth, Number(0));
    for (const std::int64_t j : plan.key_tiles_of(s, unit.first)) {
      if (!sees(unit, j)) continue;
      const Panel of_k = read_keys(s, j);
      transpose(read_tile(p.v, s, j, v), plan.keys_at(j), vt);
      for (std::int64_t i = unit.first; i < unit.last; ++i) {
        if (!plan.sees(i, j)) continue;
        const std::int64_t at = (i - unit.first) * plan.tile;
        probabilities(s, i, j, at, of_k);
        product<L>(plan.queries_at(i), depth, plan.keys_at(j), slopes, tile, 1, of_k.data, of_k.row,
                   sum + at * depth, depth, true);
      }
    }
    multiply_row(sum, unit.count * depth, static_cast<Number>(p.scale));
    write(g.q, s, unit.query, unit.count, sum);
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

// Templates, so that a forward alone does not make anyone compile the backward.
template <class Of>
void forward_attention(const Of& p, const CpuOptions& cpu) {
  attention::forward_with<Worker<Floats>>(p, cpu);
}
template <class Of>
void backward_attention(const Of& p, const Gradients& g, const CpuOptions& cpu) {
  attention::backward_with<Worker<Floats>>(p, g, cpu);
}

}  // namespace
}  // namespace ds::DS_ISA

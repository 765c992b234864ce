#pragma once

// Attention on the CPU, forward and backward, for ops that are one: include it in one source of the
// op. cpu_attention_problem.h says what is computed.
//
// Work is cut into tiles of 64 queries and 64 keys (or the blocks of a layout), so that the scores
// are never in memory as a whole. Forward, a unit of work is some tiles of queries, which share
// what is made of a tile of keys: floats, and k as columns. Backward, a unit is a slice (or those
// that share a gradient of the pair bias). Where those are too few for the threads, or their sums
// too large, there are two passes, a tile of keys over all queries and tiles of queries over all
// keys: the scores are computed twice (7 products in place of 5), but no two threads add to one
// sum. The result does not depend on the number of threads nor on the code path, to the last bit.

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "cpu_attention_problem.h"
#include "cpu_isa.h"
#include "cpu_parallel.h"
#include "half.h"

namespace ds::attention {

// Up to so many queries a slice (a token that follows a prompt), k is not worth turning into
// columns: keys are read once, where they are.
constexpr std::int64_t kFewQueries = 4;

struct Slice {
  std::array<std::int64_t, 3> index = {};
  std::int64_t at(const Rows& rows) const {
    return index[0] * rows.slice[0] + index[1] * rows.slice[1] + index[2] * rows.slice[2];
  }
};

inline Slice slice_at(const std::array<std::int64_t, 3>& sizes, std::int64_t number) {
  return {{number / sizes[2] / sizes[1], number / sizes[2] % sizes[1], number % sizes[2]}};
}

// The numbers first to last of a list, or themselves where there is no list.
struct TileRange {
  struct Iterator {
    const std::int64_t* list;
    std::int64_t at;
    std::int64_t operator*() const { return list == nullptr ? at : list[at]; }
    Iterator& operator++() {
      ++at;
      return *this;
    }
    bool operator!=(const Iterator& other) const { return at != other.at; }
  };
  const std::int64_t* list;
  std::int64_t first, last;
  Iterator begin() const { return {list, first}; }
  Iterator end() const { return {list, last}; }
};

// How a problem is cut: units of work, and the slices that one of them goes through.
struct Plan {
  const Problem& p;
  std::int64_t tile = 64, padded_tile, padded_dim, query_tiles, key_tiles, slices, pair_rows = 0;
  // Of a unit of queries: tiles, and rows; and how many units a slice has. An element of the
  // result does not depend on it.
  std::int64_t span = 4, rows, query_units;
  // Slices that share a gradient of the pair bias are the members of a group.
  std::int64_t groups, members = 1;
  std::array<std::int64_t, 3> own, shared = {1, 1, 1};
  bool few;
  // Backward: a unit is all keys of a group, and has the gradient of q as well. To the bit the same
  // as two passes, so it may depend on the threads.
  bool one_pass;

  Plan(const Problem& problem, const Rows& grad_pair_bias, int threads)
      : p(problem), own(problem.slices), few(problem.queries <= kFewQueries) {
    const auto up = [](std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit; };
    if (p.tiles != nullptr) tile = p.tiles->size;
    padded_tile = up(tile, 16) * 16;
    padded_dim = up(p.dim, 16) * 16;
    query_tiles = up(p.queries, tile);
    key_tiles = up(p.keys, tile);
    slices = own[0] * own[1] * own[2];
    if (p.tiles != nullptr) span = 1;
    while (span > 1 && slices * up(query_tiles, span) < 4 * threads && threads > 1) span /= 2;
    span = std::max(std::int64_t{1}, std::min(span, query_tiles));
    rows = std::min(span * tile, p.queries);
    query_units = up(query_tiles, span);
    if (grad_pair_bias.data != nullptr) {
      pair_rows = p.queries;
      for (std::size_t d = 0; d < 3; ++d) {
        if (grad_pair_bias.slice[d] == 0) std::swap(own[d], shared[d]);
      }
    }
    groups = own[0] * own[1] * own[2];
    members = shared[0] * shared[1] * shared[2];
    constexpr std::int64_t kMostSums = 1 << 20;
    const bool busy = groups % threads == 0 || groups >= 3 * threads;
    one_pass = busy && members * p.queries * padded_dim <= kMostSums;
  }

  Slice slice_of(std::int64_t number) const { return slice_at(p.slices, number); }
  std::int64_t number_of(const Slice& s) const {
    return (s.index[0] * p.slices[1] + s.index[1]) * p.slices[2] + s.index[2];
  }
  Slice member_of(std::int64_t group, std::int64_t member) const {
    Slice s = slice_at(own, group);
    const Slice more = slice_at(shared, member);
    for (std::size_t d = 0; d < 3; ++d) s.index[d] += more.index[d];
    return s;
  }
  std::int64_t queries_at(std::int64_t i) const { return std::min(tile, p.queries - i * tile); }
  std::int64_t keys_at(std::int64_t j) const { return std::min(tile, p.keys - j * tile); }

  // The keys that a query sees but for a layout: [begin, end), of 0 to p.keys.
  std::int64_t begin_of(std::int64_t query) const {
    return p.window > 0 ? std::max(std::int64_t{0}, p.keys - p.queries + query - p.window + 1) : 0;
  }
  std::int64_t end_of(std::int64_t query) const {
    return p.causal ? std::max(std::int64_t{0}, p.keys - p.queries + query + 1) : p.keys;
  }
  // Whether any query of a tile sees any key of another.
  bool sees(std::int64_t i, std::int64_t j) const {
    return j * tile < end_of(i * tile + queries_at(i) - 1) &&
           j * tile + keys_at(j) > begin_of(i * tile);
  }

  TileRange key_tiles_of(const Slice& s, std::int64_t i) const {
    if (p.tiles == nullptr) return {nullptr, 0, key_tiles};
    const auto row = static_cast<std::size_t>(s.index[2] % p.tiles->layouts * query_tiles + i);
    return {p.tiles->columns.data(), p.tiles->row_begin[row], p.tiles->row_begin[row + 1]};
  }
  TileRange query_tiles_of(const Slice& s, std::int64_t j) const {
    if (p.tiles == nullptr) return {nullptr, 0, query_tiles};
    const auto column = static_cast<std::size_t>(s.index[2] % p.tiles->layouts * key_tiles + j);
    return {p.tiles->rows.data(), p.tiles->column_begin[column], p.tiles->column_begin[column + 1]};
  }
};

// Calls body(unit, space) for every unit, from as many threads as are worth it, each with memory of
// its own, which nobody has written to. Units are taken one by one: they differ in length.
template <class Number, class Body>
void for_each_unit(std::int64_t units, std::int64_t space, double products, const CpuOptions& cpu,
                   const Body& body) {
  constexpr double kProductsPerThread = 1e5;
  const double worth = std::min(std::max(1.0, products / kProductsPerThread), 1e6);
  const auto team = static_cast<int>(
      std::max(std::int64_t{1},
               std::min({units, std::int64_t{threads_of(cpu)}, static_cast<std::int64_t>(worth)})));
  const std::unique_ptr<Number[]> memory(new Number[static_cast<std::size_t>(space * team)]);
  std::atomic<std::int64_t> next{0};
  const auto run = [&](std::int64_t thread) {
    for (std::int64_t unit = next++; unit < units; unit = next++) {
      body(unit, memory.get() + thread * space);
    }
  };
#ifdef _OPENMP
  if (team > 1) {
#pragma omp parallel num_threads(team)
    run(omp_get_thread_num());
    return;
  }
#endif
  run(0);
}

inline double products_of(const Problem& p, const Plan& plan) {
  return 1.0 * static_cast<double>(plan.slices * p.queries) * static_cast<double>(p.keys * p.dim);
}

template <class Worker>
void forward_with(const Problem& p, const CpuOptions& cpu) {
  using Number = typename Worker::Number;
  const Plan plan(p, {}, threads_of(cpu));
  for_each_unit<Number>(
      plan.slices * plan.query_units, Worker::space(plan, false), products_of(p, plan), cpu,
      [&](std::int64_t unit, Number* space) { Worker(p, plan, space, false).forward(unit); });
}

template <class Worker>
void backward_with(const Problem& p, const Gradients& g, const CpuOptions& cpu) {
  using Number = typename Worker::Number;
  const Plan plan(p, g.pair_bias, threads_of(cpu));
  const std::int64_t space = Worker::space(plan, true);
  std::vector<Number> key_sums(
      static_cast<std::size_t>(g.key_bias.data == nullptr ? 0 : plan.slices * p.keys));
  Number* sums = g.key_bias.data == nullptr ? nullptr : key_sums.data();
  const auto run = [&](std::int64_t units, const auto& body) {
    for_each_unit<Number>(
        units, space, products_of(p, plan), cpu,
        [&](std::int64_t unit, Number* memory) { body(Worker(p, plan, memory, true), unit); });
  };
  const std::int64_t by_queries = plan.slices * plan.query_units;
  run(by_queries, [&](const Worker& w, std::int64_t unit) { w.deltas(g, unit); });
  if (plan.one_pass) {
    run(plan.groups,
        [&](const Worker& w, std::int64_t group) { w.backward_group(g, group, sums); });
  } else {
    run(plan.groups * plan.key_tiles, [&](const Worker& w, std::int64_t unit) {
      w.backward_keys(g, unit / plan.key_tiles, unit % plan.key_tiles, sums);
    });
    run(by_queries, [&](const Worker& w, std::int64_t unit) { w.backward_queries(g, unit); });
  }
  if (sums != nullptr) Worker::reduce_keys(p, plan, g, sums);
}

}  // namespace ds::attention

#define DS_KERNEL_FILE "cpu_attention_kernel.h"
#include "for_each_isa.h"
#undef DS_KERNEL_FILE

namespace ds::attention {

// For problems that the op has checked. Pointers of what is empty are not used. Ops that have no
// float64 say so, and are not made to compile it.
template <bool kHasDoubles>
void forward(const Problem& p, const CpuOptions& cpu) {
  if constexpr (kHasDoubles) {
    if (p.type == Real::f64) return forward_with<scalar::Worker<scalar::Doubles>>(p, cpu);
  }
  const CpuIsa isa = resolve_isa(cpu.isa);
  DS_ON_PATH(isa, forward_attention(p, cpu));
}

template <bool kHasDoubles>
void backward(const Problem& p, const Gradients& g, const CpuOptions& cpu) {
  if constexpr (kHasDoubles) {
    if (p.type == Real::f64) return backward_with<scalar::Worker<scalar::Doubles>>(p, g, cpu);
  }
  const CpuIsa isa = resolve_isa(cpu.isa);
  DS_ON_PATH(isa, backward_attention(p, g, cpu));
}

}  // namespace ds::attention

#pragma once

// Attention on the CPU, forward and backward, for ops that are one: include it in one source of the
// op. cpu_attention_problem.h says what is computed.
//
// Work is cut into tiles of 64 queries and 64 keys (or the blocks of a layout), so that the scores
// are never in memory as a whole. Forward, a unit of work is one tile of queries. Backward there
// are two passes, a tile of keys over all queries and a tile of queries over all keys: the scores
// are computed twice (7 products in place of 5), but no two threads add to one sum. The result does
// not depend on the number of threads nor on the code path, to the last bit.

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "cpu_attention_problem.h"
#include "cpu_isa.h"
#include "cpu_parallel.h"
#include "half.h"

namespace ds::attention {

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
  std::int64_t tile = 64, padded_tile, padded_dim, query_tiles, key_tiles, slices, pair_rows = 0;
  // Slices that share a gradient of the pair bias are the members of a group.
  std::int64_t groups, members = 1;
  std::array<std::int64_t, 3> all, own, shared = {1, 1, 1};
  const Tiles* tiles;

  Plan(const Problem& p, const Rows& grad_pair_bias)
      : all(p.slices), own(p.slices), tiles(p.tiles) {
    const auto up = [](std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit; };
    if (tiles != nullptr) tile = tiles->size;
    padded_tile = up(tile, 16) * 16;
    padded_dim = up(p.dim, 16) * 16;
    query_tiles = up(p.queries, tile);
    key_tiles = up(p.keys, tile);
    slices = all[0] * all[1] * all[2];
    if (grad_pair_bias.data != nullptr) {
      pair_rows = p.queries;
      for (std::size_t d = 0; d < 3; ++d) {
        if (grad_pair_bias.slice[d] == 0) std::swap(own[d], shared[d]);
      }
    }
    groups = own[0] * own[1] * own[2];
    members = shared[0] * shared[1] * shared[2];
  }

  Slice slice_of(std::int64_t number) const { return slice_at(all, number); }
  std::int64_t number_of(const Slice& s) const {
    return (s.index[0] * all[1] + s.index[1]) * all[2] + s.index[2];
  }
  Slice member_of(std::int64_t group, std::int64_t member) const {
    Slice s = slice_at(own, group);
    const Slice more = slice_at(shared, member);
    for (std::size_t d = 0; d < 3; ++d) s.index[d] += more.index[d];
    return s;
  }
  TileRange key_tiles_of(const Slice& s, std::int64_t i) const {
    if (tiles == nullptr) return {nullptr, 0, key_tiles};
    const auto row = static_cast<std::size_t>(s.index[2] % tiles->layouts * query_tiles + i);
    return {tiles->columns.data(), tiles->row_begin[row], tiles->row_begin[row + 1]};
  }
  TileRange query_tiles_of(const Slice& s, std::int64_t j) const {
    if (tiles == nullptr) return {nullptr, 0, query_tiles};
    const auto column = static_cast<std::size_t>(s.index[2] % tiles->layouts * key_tiles + j);
    return {tiles->rows.data(), tiles->column_begin[column], tiles->column_begin[column + 1]};
  }
};

}  // namespace ds::attention

#define DS_KERNEL_FILE "cpu_attention_kernel.h"
#include "for_each_isa.h"
#undef DS_KERNEL_FILE

namespace ds::attention {

// Calls body(unit, space) for every unit, from as many threads as are worth it, each with memory of
// its own. Units are taken one by one: those of a layout differ in length.
template <class Number, class Body>
void for_each_unit(std::int64_t units, std::int64_t space, double products, const CpuOptions& cpu,
                   const Body& body) {
  constexpr double kProductsPerThread = 1e5;
  const double worth = std::max(1.0, products / kProductsPerThread);
  const auto team = static_cast<int>(
      std::max(std::int64_t{1}, std::min({units, std::int64_t{threads_of(cpu)},
                                          static_cast<std::int64_t>(std::min(worth, 1e6))})));
  std::vector<Number> memory(static_cast<std::size_t>(space * team));
  std::atomic<std::int64_t> next{0};
  const auto run = [&](std::int64_t thread) {
    for (std::int64_t unit = next++; unit < units; unit = next++) {
      body(unit, memory.data() + thread * space);
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

template <template <class> class Worker, class L>
void forward_with(const Problem& p, const CpuOptions& cpu) {
  using Number = typename L::Number;
  const Plan plan(p, {});
  const double products = 1.0 * plan.slices * p.queries * p.keys * p.dim;
  for_each_unit<Number>(
      plan.slices * plan.query_tiles, Worker<L>::space(plan), products, cpu,
      [&](std::int64_t unit, Number* space) { Worker<L>(p, plan, space).forward(unit); });
}

template <template <class> class Worker, class L>
void backward_with(const Problem& p, const Gradients& g, const CpuOptions& cpu) {
  using Number = typename L::Number;
  const Plan plan(p, g.pair_bias);
  const double products = 1.0 * plan.slices * p.queries * p.keys * p.dim;
  const std::int64_t space = Worker<L>::space(plan);
  std::vector<Number> key_sums(
      static_cast<std::size_t>(g.key_bias.data == nullptr ? 0 : plan.slices * p.keys));
  Number* sums = g.key_bias.data == nullptr ? nullptr : key_sums.data();
  const auto run = [&](std::int64_t units, const auto& body) {
    for_each_unit<Number>(units, space, products, cpu, [&](std::int64_t unit, Number* memory) {
      body(Worker<L>(p, plan, memory), unit);
    });
  };
  const std::int64_t by_queries = plan.slices * plan.query_tiles;
  run(by_queries, [&](const Worker<L>& w, std::int64_t unit) { w.deltas(g, unit); });
  run(plan.groups * plan.key_tiles,
      [&](const Worker<L>& w, std::int64_t unit) { w.backward_keys(g, unit, sums); });
  run(by_queries, [&](const Worker<L>& w, std::int64_t unit) { w.backward_queries(g, unit); });
  if (sums != nullptr) Worker<L>::reduce_keys(p, plan, g, sums);
}

// For problems that the op has checked. Pointers of what is empty are not used.
inline void forward(const Problem& p, const CpuOptions& cpu) {
  if (p.type == Real::f64) return forward_with<scalar::Worker, scalar::Doubles>(p, cpu);
  switch (resolve_isa(cpu.isa)) {
#if defined(__x86_64__)
    case CpuIsa::avx512_bf16:
      return forward_with<avx512_bf16::Worker, avx512_bf16::Floats>(p, cpu);
    case CpuIsa::avx512:
      return forward_with<avx512::Worker, avx512::Floats>(p, cpu);
    case CpuIsa::avx2:
      return forward_with<avx2::Worker, avx2::Floats>(p, cpu);
#endif
    default:
      return forward_with<scalar::Worker, scalar::Floats>(p, cpu);
  }
}

inline void backward(const Problem& p, const Gradients& g, const CpuOptions& cpu) {
  if (p.type == Real::f64) return backward_with<scalar::Worker, scalar::Doubles>(p, g, cpu);
  switch (resolve_isa(cpu.isa)) {
#if defined(__x86_64__)
    case CpuIsa::avx512_bf16:
      return backward_with<avx512_bf16::Worker, avx512_bf16::Floats>(p, g, cpu);
    case CpuIsa::avx512:
      return backward_with<avx512::Worker, avx512::Floats>(p, g, cpu);
    case CpuIsa::avx2:
      return backward_with<avx2::Worker, avx2::Floats>(p, g, cpu);
#endif
    default:
      return backward_with<scalar::Worker, scalar::Floats>(p, g, cpu);
  }
}

}  // namespace ds::attention

#pragma once

// The order of work of LAMB. Plain host code: it is tested without CUDA.
//
// A tensor is passed twice: pass A writes m and v and sums ‖p‖² and ‖u‖²; pass B, which needs the
// sums of the whole tensor, reads p, m and v again and writes p. Blocks take items by a ticket, in
// order, and a block that holds one of pass B waits for the tensor's pass A, whose items all have
// lower tickets: they are done or held by a block that runs, so no wait is for ever.
//
// What pass B reads should still be in the L2 cache: 12 bytes an element in f32. So
// - a small tensor is one item: a block passes all of it twice;
// - larger ones are passed in batches of at most kBatchChunks;
// - pass B goes backwards: of a tensor that the cache cannot hold it meets the part read last;
// - between pass A and pass B stand the first kLag items of the next pass A, so that memory is busy
//   while the sums come together.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cuda_work_list.h"

namespace ds {

// Measured on an H200 (572 M parameters as GPT-2 XL has them / 128 tensors of 1 M, both in f32;
// ms): chunks of 4096, batches and lag of 1024: 5.91 / 1.28; 256 and 128: 5.88 / 1.84, too few
// items that can go on; chunks of 2048 with as many elements ahead: 6.24 / 1.30.
inline constexpr std::int64_t kLambChunk = 4096;  // Elements of an item, if the parameters are f32,
inline constexpr std::int64_t kLambChunk16 = 8192;  // or in 16 bits,
inline constexpr std::int64_t kLambWhole = 16384;   // unless the tensor has at most as many.
inline constexpr std::uint32_t kBatchChunks = 1024;
inline constexpr std::uint32_t kLag = 1024;

inline std::int64_t lamb_chunk_of(DType param) {
  return param == DType::f32 ? kLambChunk : kLambChunk16;
}

enum class LambPass : std::uint32_t { a, b, both };

struct LambItem {
  std::uint32_t row;
  std::uint32_t chunk : 30;
  std::uint32_t pass : 2;
};

struct alignas(16) LambRow {
  WorkRow work;
  std::uint32_t index;  // Of the tensor, in the caller's list.
  std::uint32_t chunks;
  std::uint64_t first_partial;  // Of its chunks' sums, in its group.
};

struct LambGroup {
  DType param_dtype, state_dtype;
  std::size_t first_row, rows;
  std::size_t first_item, items;
  std::uint64_t partials;
};

struct LambList {
  std::vector<LambRow> rows;
  std::vector<LambItem> items;
  std::vector<LambGroup> groups;
};

namespace detail {

// The items of rows [first, first + count).
inline void order_lamb_items(const std::vector<LambRow>& rows, std::size_t first, std::size_t count,
                             std::vector<LambItem>& items) {
  const auto add = [&](std::size_t row, std::uint32_t chunk, LambPass pass) {
    items.push_back({static_cast<std::uint32_t>(row), chunk, static_cast<std::uint32_t>(pass)});
  };
  std::vector<std::vector<std::size_t>> units;  // A large tensor, or a batch of smaller ones.
  std::uint64_t in_unit = 0;
  for (std::size_t i = first; i < first + count; ++i) {
    if (rows[i].chunks == 1) {
      add(i, 0, LambPass::both);
      continue;
    }
    if (units.empty() || in_unit + rows[i].chunks > kBatchChunks) {
      units.emplace_back();
      in_unit = 0;
    }
    units.back().push_back(i);
    in_unit += rows[i].chunks;
  }
  const auto pass_a = [&](const std::vector<std::size_t>& unit, std::uint64_t from,
                          std::uint64_t to) {
    std::uint64_t at = 0;
    for (const std::size_t row : unit) {
      for (std::uint32_t chunk = 0; chunk < rows[row].chunks; ++chunk, ++at) {
        if (at >= from && at < to) add(row, chunk, LambPass::a);
      }
    }
  };
  for (std::size_t u = 0; u < units.size(); ++u) {
    if (u == 0) pass_a(units[0], 0, UINT64_MAX);
    if (u + 1 < units.size()) pass_a(units[u + 1], 0, kLag);
    for (auto row = units[u].rbegin(); row != units[u].rend(); ++row) {
      for (std::uint32_t chunk = rows[*row].chunks; chunk-- > 0;) add(*row, chunk, LambPass::b);
    }
    if (u + 1 < units.size()) pass_a(units[u + 1], kLag, UINT64_MAX);
  }
}

}  // namespace detail

// A group a combination of types, in the order of their first tensors.
inline LambList make_lamb_list(const std::vector<WorkTensor>& tensors, const char* function) {
  LambList list;
  std::vector<std::vector<std::size_t>> members;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const WorkTensor& t = tensors[i];
    if (t.size == 0) continue;
    std::size_t g = 0;
    while (g < list.groups.size() && !(list.groups[g].param_dtype == t.param_dtype &&
                                       list.groups[g].state_dtype == t.state_dtype)) {
      ++g;
    }
    if (g == list.groups.size()) {
      list.groups.push_back({t.param_dtype, t.state_dtype, 0, 0, 0, 0, 0});
      members.emplace_back();
    }
    members[g].push_back(i);
  }
  for (std::size_t g = 0; g < members.size(); ++g) {
    LambGroup& group = list.groups[g];
    group.first_row = list.rows.size();
    group.rows = members[g].size();
    group.first_item = list.items.size();
    for (const std::size_t i : members[g]) {
      LambRow row{};
      row.work = work_row(tensors[i]);
      row.index = static_cast<std::uint32_t>(i);
      const std::int64_t chunks =
          row.work.size <= kLambWhole ? 1 : chunks_of(row.work, lamb_chunk_of(group.param_dtype));
      if (chunks >= 1 << 30) {
        throw std::invalid_argument(std::string(function) +
                                    ": more than 2^42 elements in a tensor");
      }
      row.chunks = static_cast<std::uint32_t>(chunks);
      row.first_partial = group.partials;
      group.partials += row.chunks;
      list.rows.push_back(row);
    }
    detail::order_lamb_items(list.rows, group.first_row, group.rows, list.items);
    group.items = list.items.size() - group.first_item;
    if (group.items > INT32_MAX) {
      throw std::invalid_argument(std::string(function) + ": more than 2^42 elements in a call");
    }
  }
  return list;
}

}  // namespace ds

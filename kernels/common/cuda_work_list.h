#pragma once

// How a list of tensors becomes work for one launch: rows (a tensor each) and items (a chunk of a
// row each, in order). A block of threads takes an item. Plain host code: it is tested without
// CUDA.
//
// Chunks are small and taken in order by whichever block is free, so that all blocks work on one
// stretch of memory at a time. Measured on an H200, Adam in f32 over 572 M elements, as time over
// that of a copy of the same bytes: chunks of 2048 in order 0.99, of 65536 1.10; blocks that stay
// and each take every n-th chunk drift apart, 1.08 to 1.12, with bulk copies through shared memory
// 1.06 to 1.13. Streaming hints on loads and stores cost 1 to 2 %.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "cpu_optimizer.h"

namespace ds {

// Elements of an item: with fewer, what a block waits for before its first element costs more than
// the elements. (All in 16 bits, Adam: 4096 1.07, 8192 1.04 times the copy; 2048 1.20.)
inline constexpr std::int64_t kChunk = 2048;       // Parameters in f32,
inline constexpr std::int64_t kChunk16 = 4096;     // in 16 bits with states in f32,
inline constexpr std::int64_t kChunkAll16 = 8192;  // and both in 16 bits.

inline std::int64_t chunk_of(DType param, DType state) {
  if (param == DType::f32) return kChunk;
  return state == DType::f32 ? kChunk16 : kChunkAll16;
}

// One parameter and what belongs to it: runs of `size` elements in device memory, in one order.
struct WorkTensor {
  void* param;
  const void* grad;
  void* states[kMaxStates];  // Null behind the op's last.
  void* copy;                // The new parameter in another type, or null.
  std::int64_t size;
  DType param_dtype, grad_dtype, state_dtype, copy_dtype;
  std::uint32_t unused = 0;  // No padding: lists are compared as bytes.
};
static_assert(std::has_unique_object_representations_v<WorkTensor>);

inline bool same_list(const std::vector<WorkTensor>& a, const std::vector<WorkTensor>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof a[0]) == 0);
}

// A tensor as the kernels read it.
struct alignas(16) WorkRow {
  void* param;
  const void* grad;
  void* states[kMaxStates];
  void* copy;
  std::int64_t size;
  std::uint32_t first_item;  // Of this row, in its group.
  std::uint32_t head;        // Elements before the first 16-byte boundary that all runs share.
  std::uint32_t is_vector;   // 0: there is no such boundary.
  DType grad_dtype, copy_dtype;
  std::uint8_t unused[2] = {};
};

// Rows and items of tensors of the same types: what one launch takes. Gradients and copies may
// differ among them.
struct WorkGroup {
  DType param_dtype, state_dtype;
  std::size_t first_item;  // In WorkList::items.
  std::uint32_t items;
};

struct WorkList {
  std::vector<WorkRow> rows;         // Of tensors that are not empty.
  std::vector<std::uint32_t> items;  // The row of each.
  std::vector<WorkGroup> groups;
};

// Throws as check_tensors does.
inline void check_work(const std::vector<WorkTensor>& tensors, const OptimizerNames& names) {
  std::vector<OptimizerTensor> list;
  list.reserve(tensors.size());
  for (const WorkTensor& t : tensors) {
    list.push_back({t.param,
                    t.grad,
                    {t.states[0], t.states[1]},
                    t.size,
                    t.param_dtype,
                    t.grad_dtype,
                    t.state_dtype,
                    t.copy_dtype,
                    t.copy});
  }
  check_tensors(list, names);
}

namespace detail {

// The number of elements, at most 7, after which every run of the tensor is at a multiple of 16
// bytes (of 8 for a 16-bit type that is read 4 at a time beside a wider one); -1 if there is none.
inline int common_head(const WorkTensor& t) {
  const struct {
    const void* data;
    DType dtype;
  } runs[] = {{t.param, t.param_dtype},
              {t.grad, t.grad_dtype},
              {t.states[0], t.state_dtype},
              {t.states[1], t.state_dtype},
              {t.copy, t.copy_dtype}};
  for (int head = 0; head < 8; ++head) {
    bool fits = true;
    for (const auto& run : runs) {
      const auto at = reinterpret_cast<std::uintptr_t>(run.data) +
                      static_cast<std::uintptr_t>(head * dtype_size(run.dtype));
      if (run.data != nullptr && at % 16 != 0) fits = false;
    }
    if (fits) return head;
  }
  return -1;
}

inline bool same_types(const WorkGroup& group, const WorkTensor& t) {
  return group.param_dtype == t.param_dtype && group.state_dtype == t.state_dtype;
}

}  // namespace detail

inline WorkRow work_row(const WorkTensor& t) {
  const int head = detail::common_head(t);
  WorkRow row{t.param,      t.grad,      {t.states[0], t.states[1]}, t.copy, t.size, 0, 0, 0,
              t.grad_dtype, t.copy_dtype};
  row.is_vector = head >= 0;
  if (head > 0) row.head = static_cast<std::uint32_t>(std::min<std::int64_t>(head, t.size));
  return row;
}

// The row's first chunk has the head besides, which is why a head alone is a chunk too.
inline std::int64_t chunks_of(const WorkRow& row, std::int64_t chunk) {
  return std::max<std::int64_t>(1, (row.size - row.head + chunk - 1) / chunk);
}

// A group a combination of types, in the order of their first tensors; rows stay in order.
inline WorkList make_work_list(const std::vector<WorkTensor>& tensors, const char* function) {
  WorkList list;
  std::vector<std::vector<std::size_t>> members;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].size == 0) continue;
    std::size_t g = 0;
    while (g < list.groups.size() && !detail::same_types(list.groups[g], tensors[i])) ++g;
    if (g == list.groups.size()) {
      list.groups.push_back({tensors[i].param_dtype, tensors[i].state_dtype, 0, 0});
      members.emplace_back();
    }
    members[g].push_back(i);
  }
  for (std::size_t g = 0; g < members.size(); ++g) {
    std::int64_t items = 0;
    list.groups[g].first_item = list.items.size();
    for (const std::size_t i : members[g]) {
      WorkRow row = work_row(tensors[i]);
      row.first_item = static_cast<std::uint32_t>(items);
      const std::int64_t chunks =
          chunks_of(row, chunk_of(tensors[i].param_dtype, tensors[i].state_dtype));
      items += chunks;
      if (items > INT32_MAX) {
        throw std::invalid_argument(std::string(function) + ": more than 2^42 elements in a call");
      }
      list.items.insert(list.items.end(), static_cast<std::size_t>(chunks),
                        static_cast<std::uint32_t>(list.rows.size()));
      list.rows.push_back(row);
    }
    list.groups[g].items = static_cast<std::uint32_t>(items);
  }
  return list;
}

}  // namespace ds

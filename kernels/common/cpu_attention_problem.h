#pragma once

// Attention on the CPU: what is computed, in memory. A slice is one matrix of queries with its keys
// and values; slices lie in three dimensions (batch, sequence and head, for one op; batch, head of
// the keys and head among those that share it, for another).
//
//   s = scale·q·kᵀ + key_bias + pair_bias + pair_mask        [queries, keys]
//   lse = log Σ e^s over the keys, out = dropout(e^(s − lse))·v
//
// A query of which every key is masked (−∞), or that has no key, gets out = 0, lse = −∞ and no
// gradient.

#include <array>
#include <cstdint>
#include <vector>

#include "dropout.h"
#include "ds_types.h"

namespace ds::attention {

enum class Real : std::uint8_t { f32, f16, bf16, f64 };

inline Real real_of(DType dtype) {
  return dtype == DType::f32 ? Real::f32 : dtype == DType::f16 ? Real::f16 : Real::bf16;
}

// Rows of a tensor: element [a, b, c, row, column] lies at a·slice[0] + b·slice[1] + c·slice[2] +
// row·row_stride + column. A stride of 0 repeats; null is a term that is not there.
struct Rows {
  void* data = nullptr;
  std::array<std::int64_t, 3> slice = {};
  std::int64_t row_stride = 0;
};

// Which tiles of `size` queries and keys there are: of the layout l and the row of tiles i, the
// columns in `columns` from row_begin[l·rows + i] to the next; and the same by columns. Ascending.
// `size` is a multiple of 8.
struct Tiles {
  std::int64_t size = 0, layouts = 1;  // Layouts: one for all, or one for each index of slice 2.
  std::vector<std::int64_t> row_begin, columns, column_begin, rows;
};

struct Problem {
  std::array<std::int64_t, 3> slices = {};
  std::int64_t queries = 0, keys = 0, dim = 0;
  double scale = 1.0;
  Real type = Real::f32;  // Of all but lse, delta and the gradients of biases.
  // Slices may share k and v, by a stride of 0, where there is no backward.
  Rows q, k, v;
  Rows key_bias;                 // One row a slice.
  Rows pair_bias, pair_mask;     // [queries, keys] a slice.
  const Tiles* tiles = nullptr;  // Null: all.
  // Query i stands at position keys − queries + i of the keys.
  bool causal = false;      // It sees no key behind its position.
  std::int64_t window = 0;  // > 0: nor any that is `window` or more before it.
  // Of the score of a key the index is first_score(slice·queries + query, keys) + key.
  DropoutPlan dropout;
  Rows out;  // Written forward, read backward.
  Rows lse;  // One row a slice: f32, for f64 f64. Like out; null where there is no backward.
};

struct Gradients {
  Rows out;      // Read.
  Rows delta;    // Written: Σ out·grad of each query. As lse.
  Rows q, k, v;  // Written.
  Real bias_type = Real::f32;
  // Written; a stride of 0 in a dimension of slices is the sum over it. Null: not wanted.
  // Of the pair bias only tiles that there are.
  Rows key_bias, pair_bias;
};

}  // namespace ds::attention

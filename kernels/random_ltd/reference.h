#pragma once

// What random_ltd computes, in plain C++: this is the definition, and the kernels give the same
// bytes.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "random_ltd.h"

namespace ds::reference {

inline void token_sort(const TokenSort& sort) {
  for (std::int64_t row = 0; row < sort.rows; ++row) {
    std::int32_t* to = sort.sorted + row * sort.size;
    std::copy_n(sort.ids + row * sort.size, sort.size, to);
    std::sort(to, to + sort.size);
  }
}

// Calls visit(all_row, kept_row), with null for a row of `all` that does not exist.
template <class Visit>
void each_token(const TokenRows& rows, const Visit& visit) {
  auto* all = static_cast<std::uint8_t*>(rows.all);
  auto* kept = static_cast<std::uint8_t*>(rows.kept_rows);
  for (std::int64_t b = 0; b < rows.batch; ++b) {
    for (std::int64_t k = 0; k < rows.kept; ++k) {
      const std::int64_t token = rows.indices == nullptr ? k : rows.indices[b * rows.kept + k];
      const bool exists = token >= 0 && token < rows.tokens;
      visit(exists ? all + b * rows.all_batch_stride + token * rows.all_token_stride : nullptr,
            kept + b * rows.kept_batch_stride + k * rows.kept_token_stride);
    }
  }
}

inline void token_gather(const TokenRows& rows) {
  each_token(rows, [&](const std::uint8_t* all, std::uint8_t* kept) {
    const auto size = static_cast<std::size_t>(rows.row_bytes);
    if (all != nullptr) {
      std::memcpy(kept, all, size);
    } else {
      std::memset(kept, 0, size);
    }
  });
}

inline void token_scatter(const TokenRows& rows) {
  each_token(rows, [&](std::uint8_t* all, const std::uint8_t* kept) {
    if (all != nullptr) std::memcpy(all, kept, static_cast<std::size_t>(rows.row_bytes));
  });
}

inline void mask_gather(const MaskGather& g) {
  const auto* mask = static_cast<const std::uint8_t*>(g.mask);
  auto* out = static_cast<std::uint8_t*>(g.out);
  const auto size = static_cast<std::size_t>(g.element_size);
  const auto exists = [&](std::int64_t token) { return token >= 0 && token < g.tokens; };
  for (std::int64_t l = 0; l < g.layers; ++l) {
    for (std::int64_t b = 0; b < g.batch; ++b) {
      const std::int32_t* indices = g.indices + (l * g.batch + b) * g.kept;
      for (std::int64_t i = 0; i < g.kept; ++i) {
        for (std::int64_t j = 0; j < g.kept; ++j, out += size) {
          if (exists(indices[i]) && exists(indices[j])) {
            const std::int64_t at = (b * g.tokens + indices[i]) * g.tokens + indices[j];
            std::memcpy(out, mask + static_cast<std::size_t>(at) * size, size);
          } else {
            std::memset(out, 0, size);
          }
        }
      }
    }
  }
}

}  // namespace ds::reference

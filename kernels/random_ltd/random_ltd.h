#pragma once

// Dropping tokens (random layer token drop): which tokens a layer keeps, in order; their rows,
// taken out and put back; their attention masks. On the CPU or a GPU. No torch, no CUDA header.
//
// Tensors lie in the memory of the device that computes. On a GPU, launches go to the stream and
// return at once; they can be captured in a CUDA graph. Throws std::invalid_argument, before
// anything is written, for sizes and pointers that do not fit, and std::runtime_error if CUDA
// fails. Any thread may call it. The overloads for CudaOptions are in a library that was built with
// CUDA.

#include <cstdint>

#include "ds_op.h"
#include "ds_types.h"

namespace ds {

// Each of `rows` rows of `size` ids in ascending order, of any length. The ids are meant to be
// distinct and in [0, tokens); a row that is not like that is sorted all the same, but slowly: by
// comparisons.
struct TokenSort {
  const std::int32_t* ids;
  std::int32_t*
      sorted;         // Is `ids` if there are at most kTokenSortInPlace tokens, or apart from it.
  std::int64_t rows;  // Each of rows, size, tokens may be 0.
  std::int64_t size;
  std::int64_t tokens;
};
inline constexpr std::int64_t kTokenSortInPlace = 327680;
DS_EXPORT void token_sort(const TokenSort& sort, const CpuOptions& cpu);
DS_EXPORT void token_sort(const TokenSort& sort, const CudaOptions& cuda);

// Rows of bytes, a row a token: `kept` of each of `batch` sequences of `tokens`. Strides are in
// bytes, so [batch, token, channel] and [token, batch, channel] are alike.
struct TokenRows {
  void* all;                    // Of `tokens` rows each.
  void* kept_rows;              // Of `kept` rows each. Does not overlap `all`.
  const std::int32_t* indices;  // batch·kept: which token; null: the first `kept`.
  std::int64_t batch, tokens, kept;
  std::int64_t row_bytes;
  std::int64_t all_batch_stride, all_token_stride;
  std::int64_t kept_batch_stride, kept_token_stride;
};
// kept_rows[b, k] = all[b, indices[b, k]]; zeros where an index is not in [0, tokens).
DS_EXPORT void token_gather(const TokenRows& rows, const CpuOptions& cpu);
DS_EXPORT void token_gather(const TokenRows& rows, const CudaOptions& cuda);
// all[b, indices[b, k]] = kept_rows[b, k]; the other rows stay, an index that is not in
// [0, tokens) is passed over. Of equal indices in a sequence any one may win on a GPU, the last on
// the CPU.
DS_EXPORT void token_scatter(const TokenRows& rows, const CpuOptions& cpu);
DS_EXPORT void token_scatter(const TokenRows& rows, const CudaOptions& cuda);

// out[l, b, i, j] = mask[b, indices[l, b, i], indices[l, b, j]], zero where an index is not in
// [0, tokens): the masks of the kept tokens, for each layer by its own indices.
struct MaskGather {
  const void* mask;             // batch·tokens·tokens elements.
  const std::int32_t* indices;  // layers·batch·kept.
  void* out;                    // layers·batch·kept·kept elements.
  std::int64_t layers, batch, tokens, kept;
  int element_size;  // 1, 2, 4 or 8 bytes.
};
DS_EXPORT void mask_gather(const MaskGather& gather, const CpuOptions& cpu);
DS_EXPORT void mask_gather(const MaskGather& gather, const CudaOptions& cuda);

}  // namespace ds

extern "C" DS_EXPORT int ds_self_test_random_ltd(const char* device, char* detail,
                                                 unsigned long detail_size);

#pragma once

// What a transformer computes between its matrix products when it infers, on the CPU. No torch.
//
// Elements are f32, f16 or bf16, arithmetic is in float, rounded once at the end; sizes and strides
// are in elements and of 64 bits. The same bits on every code path and with any number of threads.
// Throws std::invalid_argument, before anything is written, for null or misaligned pointers and
// sizes that do not fit. Any size may be 0. Any thread may call it, nothing is kept between calls.

#include <cstdint>

#include "ds_op.h"
#include "ds_types.h"

namespace ds {

// Over each of `rows` rows of `columns`, with s = x + residual + bias:
//
//   layer: out = (s − mean(s)) / sqrt(mean((s − mean(s))²) + epsilon) · gamma + beta
//   rms:   out = s / sqrt(mean(s²) + epsilon) · gamma + beta
enum class NormKind : std::uint8_t { layer, rms };
struct NormRows {
  const void* x;
  const void* residual = nullptr;  // Like x, or null.
  const void* bias = nullptr;      // `columns`, or null.
  const void* gamma;               // `columns`.
  const void* beta = nullptr;      // `columns`, or null.
  void* out;                       // May be x or residual.
  void* sum = nullptr;             // s, rounded, or null; may be x or residual.
  std::int64_t rows, columns;
  double epsilon;
  NormKind kind;
  DType dtype;
};
DS_EXPORT void norm_rows(const NormRows& call, const CpuOptions& cpu);

// gelu_tanh: x/2·(1 + tanh(sqrt(2/pi)·(x + 0.044715·x³))); gelu: x/2·(1 + erf(x/sqrt(2)));
// silu: x/(1 + e^-x).
enum class Activation : std::uint8_t { identity, relu, gelu_tanh, gelu, silu };

// out = f(x + bias), or gated, of rows of 2·columns: out[c] = (x + bias)[c] · f((x + bias)[c +
// columns]).
struct ActivationRows {
  const void* x;
  const void* bias = nullptr;  // As long as a row of x, or null.
  void* out;                   // rows·columns; may be x if not gated.
  std::int64_t rows, columns;
  Activation activation;
  bool gated;
  DType dtype;
};
DS_EXPORT void activation_rows(const ActivationRows& call, const CpuOptions& cpu);

// residual = (residual + bias + attention_bias [+ attention]) · scale + hidden [+ attention]
struct ResidualRows {
  void* residual;
  const void* hidden;                    // Like residual.
  const void* attention = nullptr;       // Like residual, or null.
  const void* attention_bias = nullptr;  // `columns`, or null.
  const void* bias = nullptr;            // `columns`, or null.
  std::int64_t rows, columns;
  double scale;
  bool scale_attention;  // Which of the two places attention has.
  DType dtype;
};
DS_EXPORT void residual_rows(const ResidualRows& call, const CpuOptions& cpu);

// out = out · coefficients[columns + c] + residual · coefficients[c]
struct MoeRows {
  void* out;
  const void* residual;
  const void* coefficients;  // 2·columns.
  std::int64_t rows, columns;
  DType dtype;
};
DS_EXPORT void moe_rows(const MoeRows& call, const CpuOptions& cpu);

// out = scale of its group · q, for int8 rows that fall into `groups` equal groups.
struct DequantizeRows {
  const std::int8_t* q;
  const float* scales;  // `groups`.
  void* out;
  std::int64_t rows, columns, groups;  // rows is a multiple of groups.
  DType dtype;
};
DS_EXPORT void dequantize_rows(const DequantizeRows& call, const CpuOptions& cpu);

// Where element [batch, head, token, 0] of a tensor is; what follows it is contiguous. A stride of
// 0 repeats.
struct HeadStrides {
  std::int64_t batch, head, token;
};

// Rotary embedding of the first rotary_dim elements of each head, in place: pair i of rotary_dim/2
// turns by position · theta^(−2i/rotary_dim). Pairs are (i, i + rotary_dim/2) with rotate_half,
// else (2i, 2i + 1).
struct Rotary {
  void* x;
  HeadStrides strides;
  std::int64_t batch, heads, tokens, head_size;
  std::int64_t rotary_dim;                  // Even, at most head_size.
  const std::int64_t* positions = nullptr;  // batch·tokens, or null:
  std::int64_t offset = 0;                  // the position of the first token.
  double theta;
  bool rotate_half;
  DType dtype;
};
DS_EXPORT void rotary(const Rotary& call, const CpuOptions& cpu);

// What is added to a score, and which scores there are. Query s of `queries` stands at position
// keys − queries + s of the keys. A row without any score, or with none above −infinity, gives
// zeros.
struct ScoreTerms {
  const void* mask = nullptr;  // Of the elements' type, or null.
  HeadStrides mask_strides{};
  const void* alibi = nullptr;  // Likewise.
  HeadStrides alibi_strides{};
  bool causal = false;      // No key behind the query.
  std::int64_t window = 0;  // > 0: the query's own key and the window − 1 before it, and any behind
                            // it that is not forbidden.
};

// out = softmax(scores · scale + alibi + mask) over the keys.
struct SoftmaxRows {
  const void* scores;  // batch·heads·queries·keys.
  void* out;           // May be scores.
  std::int64_t batch, heads, queries, keys;
  double scale;
  ScoreTerms terms;
  DType dtype;
};
DS_EXPORT void softmax_rows(const SoftmaxRows& call, const CpuOptions& cpu);

// out = softmax(query·keyᵀ · scale + alibi + mask) · value, the scores of a tile at a time: none
// of [queries, keys] is ever in memory. heads / kv_heads heads in a row share one head of the
// cache.
struct CachedAttention {
  const void *query, *key, *value;
  void* out;
  HeadStrides query_strides, key_strides, value_strides, out_strides;
  std::int64_t batch, heads, kv_heads, queries, keys, head_size;
  double scale;
  ScoreTerms terms;
  DType dtype;
};
DS_EXPORT void cached_attention(const CachedAttention& call, const CpuOptions& cpu);

}  // namespace ds

extern "C" DS_EXPORT int ds_self_test_transformer_inference(const char* device, char* detail,
                                                            unsigned long detail_size);

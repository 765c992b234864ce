#pragma once

// What a BERT layer computes between its matrix products, forward and backward, on the CPU. No
// torch.
//
// Elements are f32, f16 or bf16, arithmetic is in float, rounded once at the end; sizes and strides
// are in elements and of 64 bits. The same bits on every code path and with any number of threads.
// Throws std::invalid_argument, before anything is written, for null pointers and sizes that do not
// fit. Any size may be 0. Any thread may call it, nothing is kept between calls.

#include <cstdint>

#include "ds_op.h"
#include "ds_types.h"
#include "philox.h"

namespace ds {

// Each element is dropped with probability ratio, to 2^-16, or divided by the probability that it
// stays. What happens to an element follows from the source and its index, so backward needs no
// mask. A ratio of 0 uses no random numbers.
struct DropoutOptions {
  double ratio = 0.0;  // 0 <= ratio < 1.
  RandomSource source;
};

// out = dropout(softmax(q·kᵀ / sqrt(head_size) + mask))·v for each head of packed projections. The
// scores of a tile at a time: none of [tokens, tokens] is ever in memory. An element of the
// dropout is ((b·heads + h)·tokens + query)·(tokens rounded up to 8) + key. A row without a score
// above −infinity gives zeros, and gradients of zero.
struct LayerAttention {
  const void* qkv;                 // batch·tokens·3·heads·head_size.
  const void* mask = nullptr;      // Of the elements' type, added to the scores, or null;
  std::int64_t mask_strides[3]{};  // of batch, head and query; keys are contiguous.
  void* out;                       // batch·tokens·heads·head_size.
  float* log_sums;                 // batch·heads·tokens: log(sum(e^score)); backward needs it.
  std::int64_t batch, heads, tokens, head_size;
  DropoutOptions dropout;
  DType dtype;
};
DS_EXPORT void layer_attention(const LayerAttention& call, const CpuOptions& cpu);
// Reads out and log_sums as well.
struct LayerAttentionBackward {
  LayerAttention forward;
  const void* grad_out;  // Like out.
  void* grad_qkv;        // Like qkv.
};
DS_EXPORT void layer_attention_backward(const LayerAttentionBackward& call, const CpuOptions& cpu);

// out = residual + dropout(x + bias); an element of the dropout is its index.
struct DropoutAdd {
  const void* x;
  const void* bias;      // `columns`.
  const void* residual;  // Like x.
  void* out;             // May be x or residual.
  std::int64_t rows, columns;
  DropoutOptions dropout;
  DType dtype;
};
DS_EXPORT void dropout_add(const DropoutAdd& call, const CpuOptions& cpu);
// grad_x = dropout(grad_out): the gradient of x; its sum over rows is that of bias.
struct DropoutBackward {
  const void* grad_out;
  void* grad_x;  // May be grad_out.
  std::int64_t size;
  DropoutOptions dropout;
  DType dtype;
};
DS_EXPORT void dropout_backward(const DropoutBackward& call, const CpuOptions& cpu);

// out = (x − mean) · factor · gamma + beta, factor = 1/sqrt(variance + epsilon), over each row.
struct LayerNorm {
  const void* x;
  const void *gamma, *beta;  // `columns`.
  void* out;
  float* factors;  // `rows`; backward needs them.
  std::int64_t rows, columns;
  double epsilon;
  DType dtype;
};
DS_EXPORT void layer_norm(const LayerNorm& call, const CpuOptions& cpu);
// From the normalized rows alone, n = (out − beta) / gamma, where `out` is given instead of x:
// nothing of the forward's input has to be kept (gamma must not be 0). grad_gamma and grad_beta are
// sums over all rows, in an order that does not depend on the threads.
struct LayerNormBackward {
  const void* x = nullptr;    // Of the two,
  const void* out = nullptr;  // one.
  const void *gamma, *beta;   // beta is read with `out`.
  const float* factors;
  const void* grad_out;
  void* grad_x;
  void *grad_gamma, *grad_beta;  // `columns`.
  std::int64_t rows, columns;
  DType dtype;
};
DS_EXPORT void layer_norm_backward(const LayerNormBackward& call, const CpuOptions& cpu);

// out = gelu(x + bias), the one with tanh; backward: grad_x = grad_out · gelu'(x + bias).
struct BiasGelu {
  const void* x;
  const void* bias;                // `columns`.
  const void* grad_out = nullptr;  // Null: forward.
  void* out;                       // Or grad_x; may be x or grad_out.
  std::int64_t rows, columns;
  DType dtype;
};
DS_EXPORT void bias_gelu(const BiasGelu& call, const CpuOptions& cpu);

}  // namespace ds

extern "C" DS_EXPORT int ds_self_test_transformer(const char* device, char* detail,
                                                  unsigned long detail_size);

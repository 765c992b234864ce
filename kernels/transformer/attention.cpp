// Attention of a layer on the CPU: the problem in the words of cpu_attention.h.

#include <cmath>
#include <vector>

#include "checks.h"
#include "cpu_attention.h"
#include "transformer.h"

namespace ds {
namespace {

bool check(const char* name, const LayerAttention& call) {
  transformer::check_dropout(name, call.dropout);
  if (!transformer::check_sizes(name, call.dtype,
                                {call.batch, call.heads, call.tokens, call.head_size})) {
    return false;
  }
  transformer::check_pointers(name, {call.qkv, call.out, call.log_sums});
  return true;
}

// Slices are [batch, heads, 1].
attention::Rows output_rows(const LayerAttention& call, const void* data) {
  const std::int64_t token = call.heads * call.head_size;
  return {const_cast<void*>(data), {call.tokens * token, call.head_size, 0}, token};
}
// `which` of q, k and v.
attention::Rows packed_rows(const LayerAttention& call, const void* data, int which) {
  constexpr std::int64_t kParts = 3;
  const std::int64_t part = call.heads * call.head_size;
  const std::int64_t bytes = call.dtype == DType::f32 ? 4 : 2;
  char* first = static_cast<char*>(const_cast<void*>(data)) + which * part * bytes;
  return {first, {call.tokens * kParts * part, call.head_size, 0}, kParts * part};
}
// One number a query.
attention::Rows query_rows(const LayerAttention& call, float* data) {
  return {data, {call.heads * call.tokens, call.tokens, 0}, 0};
}

attention::Problem problem_of(const LayerAttention& call) {
  attention::Problem p;
  p.slices = {call.batch, call.heads, 1};
  p.queries = p.keys = call.tokens;
  p.dim = call.head_size;
  p.scale = 1.0 / std::sqrt(static_cast<double>(call.head_size));
  p.type = attention::real_of(call.dtype);
  p.q = packed_rows(call, call.qkv, 0);
  p.k = packed_rows(call, call.qkv, 1);
  p.v = packed_rows(call, call.qkv, 2);
  const std::int64_t* strides = call.mask_strides;
  attention::Rows& mask = strides[2] == 0 ? p.key_bias : p.pair_mask;
  mask = {const_cast<void*>(call.mask), {strides[0], strides[1], 0}, strides[2]};
  p.dropout = plan_dropout(call.dropout.ratio, call.dropout.source);
  p.out = output_rows(call, call.out);
  p.lse = query_rows(call, call.log_sums);
  return p;
}

}  // namespace

void layer_attention(const LayerAttention& call, const CpuOptions& cpu) {
  if (check("layer_attention", call)) attention::forward<false>(problem_of(call), cpu);
}

void layer_attention_backward(const LayerAttentionBackward& call, const CpuOptions& cpu) {
  constexpr const char* kName = "layer_attention_backward";
  const LayerAttention& forward = call.forward;
  if (!check(kName, forward)) return;
  transformer::check_pointers(kName, {call.grad_out, call.grad_qkv});
  std::vector<float> delta(
      static_cast<std::size_t>(forward.batch * forward.heads * forward.tokens));
  attention::Gradients g;
  g.out = output_rows(forward, call.grad_out);
  g.delta = query_rows(forward, delta.data());
  g.q = packed_rows(forward, call.grad_qkv, 0);
  g.k = packed_rows(forward, call.grad_qkv, 1);
  g.v = packed_rows(forward, call.grad_qkv, 2);
  attention::backward<false>(problem_of(forward), g, cpu);
}

}  // namespace ds

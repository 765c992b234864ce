// Attention over a cache on the CPU: the problem in the words of cpu_attention.h.

#include <algorithm>
#include <string>

#include "checks.h"
#include "cpu_attention.h"
#include "transformer_inference.h"

namespace ds {
namespace {

using transformer_inference::check_pointers;
using transformer_inference::check_sizes;
using transformer_inference::check_terms;
using transformer_inference::refuse;

// Slices are [batch, heads of the cache, heads that share one]; the last are a slice's queries if
// each has one, so that a key is read once for all of them.
attention::Problem problem_of(const CachedAttention& call) {
  const bool one = call.queries == 1;
  const std::int64_t share = call.heads / call.kv_heads;
  const std::int64_t bytes = call.dtype == DType::f32 ? 4 : 2;
  // Of a single query, which is the last of the keys, a window is where the keys begin.
  const std::int64_t window = call.terms.window;
  const std::int64_t hidden = one && window > 0 ? std::max<std::int64_t>(call.keys - window, 0) : 0;

  const auto rows_of = [&](const void* data, const HeadStrides& s) -> attention::Rows {
    return {const_cast<void*>(data),
            {s.batch, s.head * share, one ? 0 : s.head},
            one ? s.head : s.token};
  };
  const auto behind = [&](const void* data, std::int64_t elements) -> void* {
    if (data == nullptr) return nullptr;
    return static_cast<char*>(const_cast<void*>(data)) + elements * bytes;
  };
  const auto cache_of = [&](const void* data, const HeadStrides& s) -> attention::Rows {
    return {behind(data, hidden * s.token), {s.batch, s.head, 0}, s.token};
  };

  attention::Problem p;
  p.slices = {call.batch, call.kv_heads, one ? 1 : share};
  p.queries = one ? share : call.queries;
  p.keys = call.keys - hidden;
  p.dim = call.head_size;
  p.scale = call.scale;
  p.type = attention::real_of(call.dtype);
  p.q = rows_of(call.query, call.query_strides);
  p.k = cache_of(call.key, call.key_strides);
  p.v = cache_of(call.value, call.value_strides);
  p.pair_bias = rows_of(behind(call.terms.alibi, hidden), call.terms.alibi_strides);
  p.pair_mask = rows_of(behind(call.terms.mask, hidden), call.terms.mask_strides);
  p.causal = !one && call.terms.causal;
  p.window = one ? 0 : window;
  p.out = rows_of(call.out, call.out_strides);
  return p;
}

}  // namespace

void cached_attention(const CachedAttention& call, const CpuOptions& cpu) {
  constexpr const char* kName = "cached_attention";
  check_terms(kName, call.terms);
  if (call.kv_heads < 1 || call.heads % call.kv_heads != 0) {
    refuse(kName, std::to_string(call.heads) + " heads cannot share " +
                      std::to_string(call.kv_heads) + " heads of the cache");
  }
  if (!check_sizes(kName, {call.batch, call.heads, call.queries, call.head_size})) return;
  if (call.keys < 0) refuse(kName, "a size is negative");
  const bool no_keys = call.keys == 0;
  check_pointers(kName, call.dtype,
                 {{"query", call.query, false},
                  {"key", call.key, no_keys},
                  {"value", call.value, no_keys},
                  {"out", call.out, false},
                  {"mask", call.terms.mask, true},
                  {"alibi", call.terms.alibi, true}});
  attention::forward<false>(problem_of(call), cpu);
}

}  // namespace ds

// The softmax of scores and rotary embedding, for the code path DS_ISA.

#include "block16.h"

namespace ds::DS_ISA {
namespace {

constexpr float kNone = -__builtin_inff();

// The terms of one row of scores: query `query` of head `head`.
template <class T>
struct RowTerms {
  const T* mask;
  const T* alibi;
  std::int64_t begin, end;  // The keys that the query sees.
};

template <class T>
const T* element(const void* from, const HeadStrides& s, std::int64_t batch, std::int64_t head,
                 std::int64_t token) {
  return from == nullptr
             ? nullptr
             : static_cast<const T*>(from) + batch * s.batch + head * s.head + token * s.token;
}

template <class T>
RowTerms<T> row_terms(const ScoreTerms& terms, std::int64_t batch, std::int64_t head,
                      std::int64_t query, std::int64_t queries, std::int64_t keys) {
  const std::int64_t position = keys - queries + query;
  const std::int64_t before = terms.window > 0 ? position - terms.window + 1 : 0;
  const std::int64_t end = terms.causal ? position + 1 : keys;
  return {element<T>(terms.mask, terms.mask_strides, batch, head, query),
          element<T>(terms.alibi, terms.alibi_strides, batch, head, query), before < 0 ? 0 : before,
          end < 0 ? 0 : end};
}

// Scores of the keys [key, key + n), which may be seen or not.
template <class T>
DS_TARGET DS_INLINE Block with_terms(const Block& raw, const RowTerms<T>& row, std::int64_t key,
                                     std::int64_t n) {
  Block score = raw;
  if (row.alibi != nullptr) score += load16(row.alibi + key, n);
  if (row.mask != nullptr) score += load16(row.mask + key, n);
  if (n < kBlock || key < row.begin || key + n > row.end) {
    float lanes[kBlock];
    std::memcpy(lanes, &score, sizeof lanes);
    for (std::int64_t i = 0; i < kBlock; ++i) {
      if (i >= n || key + i < row.begin || key + i >= row.end) lanes[i] = kNone;
    }
    std::memcpy(&score, lanes, sizeof lanes);
  }
  return score;
}

template <class T>
DS_TARGET void softmax(const SoftmaxRows& call, std::int64_t first, std::int64_t last,
                       float* scratch) {
  const auto scale = static_cast<float>(call.scale);
  for (std::int64_t row = first; row < last; ++row) {
    const std::int64_t query = row % call.queries, head = row / call.queries % call.heads;
    const RowTerms<T> terms = row_terms<T>(call.terms, row / call.queries / call.heads, head, query,
                                           call.queries, call.keys);
    const T* scores = static_cast<const T*>(call.scores) + row * call.keys;
    T* out = static_cast<T*>(call.out) + row * call.keys;
    float most = kNone;
    for (std::int64_t i = 0; i < call.keys; i += kBlock) {
      const std::int64_t n = in_block(i, call.keys);
      const Block score = with_terms<T>(load16(scores + i, n) * scale, terms, i, n);
      store16(scratch + i, score);
      most = max_of(most, max16(score));
    }
    double sum = 0.0;
    if (most != kNone) {
      for (std::int64_t i = 0; i < call.keys; i += kBlock) {
        const Block weight = exp16(load16(scratch + i) - most);
        store16(scratch + i, weight);
        sum += static_cast<double>(sum16(weight));
      }
    }
    const auto factor = static_cast<float>(1.0 / sum);
    for (std::int64_t i = 0; i < call.keys; i += kBlock) {
      const Block weight = most == kNone ? splat(0.0f) : load16(scratch + i) * factor;
      store16(out + i, weight, in_block(i, call.keys));
    }
  }
}

// Units are tokens of a head. `turns` has the cosines of a token's pairs, then the sines.
template <class T>
DS_TARGET void rotate(const Rotary& call, const float* turns, std::int64_t first, std::int64_t last,
                      float* scratch) {
  const std::int64_t pairs = call.rotary_dim / 2;
  for (std::int64_t unit = first; unit < last; ++unit) {
    const std::int64_t token = unit % call.tokens, head = unit / call.tokens % call.heads;
    const std::int64_t batch = unit / call.tokens / call.heads;
    T* x = static_cast<T*>(call.x) + batch * call.strides.batch + head * call.strides.head +
           token * call.strides.token;
    const std::int64_t position = call.positions == nullptr ? token : batch * call.tokens + token;
    const float* cosines = turns + position * call.rotary_dim;
    const float* sines = cosines + pairs;
    for (std::int64_t i = 0; i < call.rotary_dim; i += kBlock) {
      store16(scratch + i, load16(x + i, in_block(i, call.rotary_dim)));
    }
    const std::int64_t step = call.rotate_half ? 1 : 2, other = call.rotate_half ? pairs : 1;
    for (std::int64_t p = 0; p < pairs; ++p) {
      float& a = scratch[p * step];
      float& b = scratch[p * step + other];
      const float turned = a * cosines[p] - b * sines[p];
      b = b * cosines[p] + a * sines[p];
      a = turned;
    }
    for (std::int64_t i = 0; i < call.rotary_dim; i += kBlock) {
      store16(x + i, load16(scratch + i), in_block(i, call.rotary_dim));
    }
  }
}

template <class T>
constexpr ScoreKernels kScoreKernels = {softmax<T>, rotate<T>};

inline const ScoreKernels& score_kernels(DType dtype) {
  return dtype == DType::f32   ? kScoreKernels<float>
         : dtype == DType::f16 ? kScoreKernels<f16>
                               : kScoreKernels<bf16>;
}

}  // namespace
}  // namespace ds::DS_ISA

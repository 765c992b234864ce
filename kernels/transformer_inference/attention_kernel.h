// Scores, their softmax and what it weighs, for the code path DS_ISA.

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

// kQueries rows of one head against kKeys keys at a time; a row keeps its largest score so far, and
// what it has summed is scaled down when a larger one comes. Each key and value is read once for
// the rows.
template <class T>
struct Rows {
  const CachedAttention& call;
  std::int64_t batch, head, query, count;
  float *q, *sums, *weights;  // [kQueries][head size in whole blocks], the same, [kQueries][kKeys].
  RowTerms<T> terms[kQueries];
  float most[kQueries];
  double total[kQueries];

  DS_TARGET DS_INLINE void start(std::int64_t width) {
    const auto scale = static_cast<float>(call.scale);
    for (int r = 0; r < kQueries; ++r) {
      // Rows that there are not repeat the last and are never stored.
      const std::int64_t at = query + (r < count ? r : count - 1);
      const T* from = element<T>(call.query, call.query_strides, batch, head, at);
      for (std::int64_t i = 0; i < width; i += kBlock) {
        store16(q + r * width + i, load16(from + i, in_block(i, call.head_size)) * scale);
        store16(sums + r * width + i, Block{});
      }
      terms[r] = row_terms<T>(call.terms, batch, head, at, call.queries, call.keys);
      most[r] = kNone;
      total[r] = 0.0;
    }
  }

  DS_TARGET DS_INLINE void score(std::int64_t width, std::int64_t kv_head, std::int64_t key,
                                 std::int64_t n) {
    for (std::int64_t j = 0; j < n; ++j) {
      const T* k = element<T>(call.key, call.key_strides, batch, kv_head, key + j);
      Block dot[kQueries] = {};
      for (std::int64_t i = 0; i < width; i += kBlock) {
        const Block part = load16(k + i, in_block(i, call.head_size));
        for (int r = 0; r < kQueries; ++r) dot[r] += load16(q + r * width + i) * part;
      }
      for (int r = 0; r < kQueries; ++r) weights[r * kKeys + j] = sum16(dot[r]);
    }
  }

  DS_TARGET DS_INLINE void weigh(std::int64_t width, std::int64_t key, std::int64_t n) {
    for (int r = 0; r < kQueries; ++r) {
      float* row = weights + r * kKeys;
      float largest = most[r];
      for (std::int64_t j = 0; j < n; j += kBlock) {
        const std::int64_t m = in_block(j, n);
        const Block score = with_terms<T>(load16(row + j), terms[r], key + j, m);
        store16(row + j, score);
        largest = max_of(largest, max16(score));
      }
      double sum = 0.0;
      for (std::int64_t j = 0; j < n; j += kBlock) {
        const Block weight = largest == kNone ? splat(0.0f) : exp16(load16(row + j) - largest);
        store16(row + j, weight);
        sum += static_cast<double>(sum16(weight));
      }
      if (largest != most[r]) {
        const Block before = exp16(splat(most[r] - largest));
        const float factor = reinterpret_cast<const float*>(&before)[0];
        total[r] *= static_cast<double>(factor);
        for (std::int64_t i = 0; i < width; i += kBlock) {
          store16(sums + r * width + i, load16(sums + r * width + i) * factor);
        }
        most[r] = largest;
      }
      total[r] += sum;
    }
  }

  DS_TARGET DS_INLINE void add(std::int64_t width, std::int64_t kv_head, std::int64_t key,
                               std::int64_t n) {
    for (std::int64_t i = 0; i < width; i += kBlock) {
      const std::int64_t m = in_block(i, call.head_size);
      Block sum[kQueries];
      for (int r = 0; r < kQueries; ++r) sum[r] = load16(sums + r * width + i);
      for (std::int64_t j = 0; j < n; ++j) {
        const Block v =
            load16(element<T>(call.value, call.value_strides, batch, kv_head, key + j) + i, m);
        for (int r = 0; r < kQueries; ++r) sum[r] += weights[r * kKeys + j] * v;
      }
      for (int r = 0; r < kQueries; ++r) store16(sums + r * width + i, sum[r]);
    }
  }

  DS_TARGET DS_INLINE void finish(std::int64_t width) {
    for (int r = 0; r < count; ++r) {
      T* out = static_cast<T*>(call.out) + batch * call.out_strides.batch +
               head * call.out_strides.head + (query + r) * call.out_strides.token;
      const auto factor = static_cast<float>(total[r] == 0.0 ? 0.0 : 1.0 / total[r]);
      for (std::int64_t i = 0; i < width; i += kBlock) {
        store16(out + i, load16(sums + r * width + i) * factor, in_block(i, call.head_size));
      }
    }
  }
};

// Units are groups of kQueries rows.
template <class T>
DS_TARGET void attention(const CachedAttention& call, std::int64_t first, std::int64_t last,
                         float* scratch) {
  const std::int64_t width = (call.head_size + kBlock - 1) / kBlock * kBlock;
  const std::int64_t groups = (call.queries + kQueries - 1) / kQueries;
  for (std::int64_t unit = first; unit < last; ++unit) {
    const std::int64_t query = unit % groups * kQueries;
    const std::int64_t head = unit / groups % call.heads;
    const std::int64_t left = call.queries - query;
    Rows<T> rows{call,
                 unit / groups / call.heads,
                 head,
                 query,
                 left < kQueries ? left : kQueries,
                 scratch,
                 scratch + kQueries * width,
                 scratch + 2 * kQueries * width,
                 {},
                 {},
                 {}};
    rows.start(width);
    // The first row of a group sees the earliest key, the last the latest.
    const std::int64_t end = rows.terms[kQueries - 1].end;
    const std::int64_t kv_head = head / (call.heads / call.kv_heads);
    for (std::int64_t key = rows.terms[0].begin / kKeys * kKeys; key < end; key += kKeys) {
      const std::int64_t n = end - key < kKeys ? end - key : kKeys;
      rows.score(width, kv_head, key, n);
      rows.weigh(width, key, n);
      rows.add(width, kv_head, key, n);
    }
    rows.finish(width);
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
constexpr AttentionKernels kAttentionKernels = {softmax<T>, attention<T>, rotate<T>};

inline const AttentionKernels& attention_kernels(DType dtype) {
  return dtype == DType::f32   ? kAttentionKernels<float>
         : dtype == DType::f16 ? kAttentionKernels<f16>
                               : kAttentionKernels<bf16>;
}

}  // namespace
}  // namespace ds::DS_ISA

// Attention of a layer, forward and backward, for the code path DS_ISA. One query at a time against
// kKeys keys; threads have heads of their own in the backward, so that no two add to one gradient.

#include "block16.h"

namespace ds::DS_ISA {
namespace {

constexpr float kNone = -__builtin_inff();

template <class T>
struct Head {
  const LayerAttention& call;
  const DropoutPlan& dropout;
  std::int64_t batch, head;
  std::int64_t width;  // The head's size in whole blocks.
  float scale;

  // Which of q, k and v: 0, 1, 2.
  std::int64_t place(int which, std::int64_t token) const {
    return (((batch * call.tokens + token) * 3 + which) * call.heads + head) * call.head_size;
  }
  const T* at(int which, std::int64_t token) const {
    return static_cast<const T*>(call.qkv) + place(which, token);
  }
  std::int64_t row(std::int64_t query) const {
    return (batch * call.heads + head) * call.tokens + query;
  }
  std::int64_t out_place(std::int64_t query) const {
    return ((batch * call.tokens + query) * call.heads + head) * call.head_size;
  }
  const T* mask(std::int64_t query) const {
    return call.mask == nullptr ? nullptr
                                : static_cast<const T*>(call.mask) + batch * call.mask_strides[0] +
                                      head * call.mask_strides[1] + query * call.mask_strides[2];
  }

  // x is whole blocks of floats.
  DS_TARGET DS_INLINE float dot(const float* x, const T* y) const {
    Block sum{};
    for (std::int64_t i = 0; i < width; i += kBlock) {
      sum += load16(x + i) * load16(y + i, in_block(i, call.head_size));
    }
    return sum16(sum);
  }
  DS_TARGET DS_INLINE void load_row(float* to, const T* from, float factor) const {
    for (std::int64_t i = 0; i < width; i += kBlock) {
      store16(to + i, load16(from + i, in_block(i, call.head_size)) * factor);
    }
  }
  // Of elements, or of whole blocks of floats: those behind the head's size are zeros.
  template <class From>
  DS_TARGET DS_INLINE void add_row(float* to, const From* from, float factor) const {
    for (std::int64_t i = 0; i < width; i += kBlock) {
      store16(to + i, load16(to + i) + load16(from + i, in_block(i, call.head_size)) * factor);
    }
  }
  DS_TARGET DS_INLINE void store_row(T* to, const float* from, float factor) const {
    for (std::int64_t i = 0; i < width; i += kBlock) {
      store16(to + i, load16(from + i) * factor, in_block(i, call.head_size));
    }
  }

  // The scores of n keys from `key` on, −infinity behind them; q is scaled.
  DS_TARGET DS_INLINE void scores(const float* q, std::int64_t query, std::int64_t key,
                                  std::int64_t n, float* to) const {
    for (std::int64_t j = 0; j < kKeys; ++j) to[j] = j < n ? dot(q, at(1, key + j)) : kNone;
    if (const T* m = mask(query); m != nullptr) {
      for (std::int64_t j = 0; j < n; j += kBlock) {
        store16(to + j, load16(to + j) + load16(m + key + j, in_block(j, n)));
      }
    }
  }

  // key is a multiple of 8.
  DS_TARGET DS_INLINE void dropped(std::int64_t query, std::int64_t key, float* factors) const {
    const std::int64_t group = (first_score(row(query), call.tokens) + key) / 8;
    for (std::int64_t j = 0; j < kKeys; j += 8) {
      dropout_factors(dropout, group + j / 8, factors + j);
    }
  }

  DS_TARGET DS_INLINE std::int64_t keys_from(std::int64_t key) const {
    return call.tokens - key < kKeys ? call.tokens - key : kKeys;
  }
};

template <class T>
DS_TARGET Head<T> head_of(const LayerAttention& call, const DropoutPlan& dropout,
                          std::int64_t head) {
  return {call,
          dropout,
          head / call.heads,
          head % call.heads,
          (call.head_size + kBlock - 1) / kBlock * kBlock,
          static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(call.head_size)))};
}

// Units are queries of a head.
template <class T>
DS_TARGET void forward(const LayerAttention& call, const DropoutPlan& dropout, std::int64_t first,
                       std::int64_t last, float* scratch) {
  for (std::int64_t unit = first; unit < last; ++unit) {
    const Head<T> head = head_of<T>(call, dropout, unit / call.tokens);
    const std::int64_t query = unit % call.tokens;
    float *q = scratch, *sum = q + head.width, *weights = sum + head.width,
          *factors = weights + kKeys;
    head.load_row(q, head.at(0, query), head.scale);
    for (std::int64_t i = 0; i < head.width; ++i) sum[i] = 0.0f;
    float most = kNone;
    double total = 0.0;
    for (std::int64_t key = 0; key < call.tokens; key += kKeys) {
      const std::int64_t n = head.keys_from(key);
      head.scores(q, query, key, n, weights);
      float largest = most;
      for (std::int64_t j = 0; j < kKeys; j += kBlock) {
        largest = max_of(largest, max16(load16(weights + j)));
      }
      if (largest == kNone) continue;
      if (largest != most) {
        const Block before = exp16(splat(most - largest));
        const float factor = reinterpret_cast<const float*>(&before)[0];
        total *= static_cast<double>(factor);
        for (std::int64_t i = 0; i < head.width; i += kBlock) {
          store16(sum + i, load16(sum + i) * factor);
        }
        most = largest;
      }
      for (std::int64_t j = 0; j < kKeys; j += kBlock) {
        const Block weight = exp16(load16(weights + j) - most);
        total += static_cast<double>(sum16(weight));
        store16(weights + j, weight);
      }
      if (dropout.threshold > 0) {
        head.dropped(query, key, factors);
        for (std::int64_t j = 0; j < kKeys; ++j) weights[j] *= factors[j];
      }
      for (std::int64_t j = 0; j < n; ++j) head.add_row(sum, head.at(2, key + j), weights[j]);
    }
    head.store_row(static_cast<T*>(call.out) + head.out_place(query), sum,
                   static_cast<float>(total == 0.0 ? 0.0 : 1.0 / total));
    // Backward sees from −infinity that there were no scores.
    call.log_sums[head.row(query)] =
        total == 0.0 ? kNone : static_cast<float>(static_cast<double>(most) + __builtin_log(total));
  }
}

// Units are heads. With p the softmax, m what the dropout multiplies, delta = grad_out·out:
// grad_v += p·m·grad_out; grad_score = p·(m·(grad_out·v) − delta); grad_q += grad_score·k·scale;
// grad_k += grad_score·q·scale.
template <class T>
DS_TARGET void backward(const LayerAttentionBackward& both, const DropoutPlan& dropout,
                        std::int64_t first, std::int64_t last, float* scratch) {
  const LayerAttention& call = both.forward;
  for (std::int64_t unit = first; unit < last; ++unit) {
    const Head<T> head = head_of<T>(call, dropout, unit);
    const std::int64_t all = call.tokens * head.width;
    float *grad_k = scratch, *grad_v = grad_k + all, *q = grad_v + all, *grad = q + head.width,
          *grad_q = grad + head.width, *weights = grad_q + head.width, *factors = weights + kKeys;
    for (std::int64_t i = 0; i < 2 * all; ++i) grad_k[i] = 0.0f;
    T* to = static_cast<T*>(both.grad_qkv);
    for (std::int64_t query = 0; query < call.tokens; ++query) {
      const float log_sum = call.log_sums[head.row(query)];
      for (std::int64_t i = 0; i < head.width; ++i) grad_q[i] = 0.0f;
      if (log_sum != kNone) {
        head.load_row(q, head.at(0, query), head.scale);
        head.load_row(grad, static_cast<const T*>(both.grad_out) + head.out_place(query), 1.0f);
        const float delta = head.dot(grad, static_cast<const T*>(call.out) + head.out_place(query));
        for (std::int64_t key = 0; key < call.tokens; key += kKeys) {
          const std::int64_t n = head.keys_from(key);
          head.scores(q, query, key, n, weights);
          for (std::int64_t j = 0; j < kKeys; j += kBlock) {
            store16(weights + j, exp16(load16(weights + j) - log_sum));
          }
          if (dropout.threshold > 0) head.dropped(query, key, factors);
          for (std::int64_t j = 0; j < n; ++j) {
            const float m = dropout.threshold > 0 ? factors[j] : 1.0f;
            head.add_row(grad_v + (key + j) * head.width, grad, weights[j] * m);
            const float grad_score = weights[j] * (m * head.dot(grad, head.at(2, key + j)) - delta);
            head.add_row(grad_q, head.at(1, key + j), grad_score);
            head.add_row(grad_k + (key + j) * head.width, q, grad_score);  // q has the scale.
          }
        }
      }
      head.store_row(to + head.place(0, query), grad_q, head.scale);
    }
    for (std::int64_t key = 0; key < call.tokens; ++key) {
      head.store_row(to + head.place(1, key), grad_k + key * head.width, 1.0f);
      head.store_row(to + head.place(2, key), grad_v + key * head.width, 1.0f);
    }
  }
}

template <class T>
constexpr AttentionKernels kAttentionKernels = {forward<T>, backward<T>};

inline const AttentionKernels& attention_kernels(DType dtype) {
  return dtype == DType::f32   ? kAttentionKernels<float>
         : dtype == DType::f16 ? kAttentionKernels<f16>
                               : kAttentionKernels<bf16>;
}

}  // namespace
}  // namespace ds::DS_ISA

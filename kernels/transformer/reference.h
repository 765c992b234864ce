#pragma once

// What a BERT layer's parts compute, in float64, from the same calls with pointers to doubles and
// log_sums and factors that are doubles too: this is the definition, and what float64 tensors get.

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "dropout.h"
#include "transformer.h"

namespace ds::reference {

inline const double* doubles(const void* at) {
  return static_cast<const double*>(at);
}
inline double* doubles(void* at) {
  return static_cast<double*>(at);
}

// What dropout multiplies element i by.
inline double dropout_factor(const DropoutOptions& options, std::int64_t i) {
  const DropoutPlan plan = plan_dropout(options.ratio, options.source);
  if (plan.threshold == 0) return 1.0;
  const Philox random =
      philox(plan.source.seed, static_cast<std::uint64_t>(i / 8), plan.source.offset);
  return sixteen_bits(random, static_cast<int>(i % 8)) < plan.threshold
             ? 0.0
             : 65536.0 / (65536.0 - static_cast<double>(plan.threshold));
}

// One query of a head: places in memory, and its row of probabilities.
struct Query {
  Query(const LayerAttention& c, std::int64_t of_row)
      : call(c),
        row(of_row),
        token(row % c.tokens),
        head(row / c.tokens % c.heads),
        batch(row / c.tokens / c.heads) {}

  std::int64_t place(int which, std::int64_t at) const {
    return (((batch * call.tokens + at) * 3 + which) * call.heads + head) * call.head_size;
  }
  std::int64_t out() const {
    return ((batch * call.tokens + token) * call.heads + head) * call.head_size;
  }
  double kept(std::int64_t key) const {
    return dropout_factor(call.dropout, first_score(row, call.tokens) + key);
  }
  double scale() const { return 1.0 / std::sqrt(static_cast<double>(call.head_size)); }
  double dot(const double* x, const double* y) const {
    double sum = 0.0;
    for (std::int64_t d = 0; d < call.head_size; ++d) sum += x[d] * y[d];
    return sum;
  }

  // The softmax, and log(sum(e^score)).
  std::vector<double> probabilities(double& log_sum) const {
    const double* qkv = doubles(call.qkv);
    std::vector<double> p(static_cast<std::size_t>(call.tokens));
    double most = -std::numeric_limits<double>::infinity(), sum = 0.0;
    for (std::size_t key = 0; key < p.size(); ++key) {
      const auto k = static_cast<std::int64_t>(key);
      p[key] = dot(qkv + place(0, token), qkv + place(1, k)) * scale();
      if (call.mask != nullptr) {
        p[key] += doubles(call.mask)[batch * call.mask_strides[0] + head * call.mask_strides[1] +
                                     token * call.mask_strides[2] + k];
      }
      most = p[key] > most ? p[key] : most;
    }
    log_sum = most;
    if (std::isinf(most)) return std::vector<double>(p.size(), 0.0);
    for (double& x : p) sum += x = std::exp(x - most);
    for (double& x : p) x /= sum;
    log_sum += std::log(sum);
    return p;
  }

  const LayerAttention& call;
  std::int64_t row, token, head, batch;
};

inline void layer_attention(const LayerAttention& call, double* log_sums) {
  for (std::int64_t row = 0; row < call.batch * call.heads * call.tokens; ++row) {
    const Query query(call, row);
    double* out = doubles(call.out) + query.out();
    const std::vector<double> p = query.probabilities(log_sums[row]);
    for (std::int64_t d = 0; d < call.head_size; ++d) {
      out[d] = 0.0;
      for (std::int64_t key = 0; key < call.tokens; ++key) {
        out[d] += p[static_cast<std::size_t>(key)] * query.kept(key) *
                  doubles(call.qkv)[query.place(2, key) + d];
      }
    }
  }
}

inline void layer_attention_backward(const LayerAttentionBackward& both) {
  const LayerAttention& call = both.forward;
  const double* qkv = doubles(call.qkv);
  double* grad = doubles(both.grad_qkv);
  for (std::int64_t i = 0; i < call.batch * call.tokens * 3 * call.heads * call.head_size; ++i) {
    grad[i] = 0.0;
  }
  for (std::int64_t row = 0; row < call.batch * call.heads * call.tokens; ++row) {
    const Query query(call, row);
    const double* grad_out = doubles(both.grad_out) + query.out();
    double log_sum = 0.0, delta = 0.0;
    const std::vector<double> p = query.probabilities(log_sum);
    std::vector<double> of_p(p.size());  // The gradient of each probability.
    for (std::size_t key = 0; key < p.size(); ++key) {
      const auto k = static_cast<std::int64_t>(key);
      of_p[key] = query.kept(k) * query.dot(grad_out, qkv + query.place(2, k));
      delta += p[key] * of_p[key];
    }
    for (std::size_t key = 0; key < p.size(); ++key) {
      const auto k = static_cast<std::int64_t>(key);
      const double of_score = p[key] * (of_p[key] - delta) * query.scale();
      for (std::int64_t d = 0; d < call.head_size; ++d) {
        grad[query.place(0, query.token) + d] += of_score * qkv[query.place(1, k) + d];
        grad[query.place(1, k) + d] += of_score * qkv[query.place(0, query.token) + d];
        grad[query.place(2, k) + d] += p[key] * query.kept(k) * grad_out[d];
      }
    }
  }
}

inline void dropout_add(const DropoutAdd& call) {
  for (std::int64_t i = 0; i < call.rows * call.columns; ++i) {
    doubles(call.out)[i] = (doubles(call.x)[i] + doubles(call.bias)[i % call.columns]) *
                               dropout_factor(call.dropout, i) +
                           doubles(call.residual)[i];
  }
}

inline void dropout_backward(const DropoutBackward& call) {
  for (std::int64_t i = 0; i < call.size; ++i) {
    doubles(call.grad_x)[i] = doubles(call.grad_out)[i] * dropout_factor(call.dropout, i);
  }
}

inline void layer_norm(const LayerNorm& call, double* factors) {
  const auto count = static_cast<double>(call.columns);
  for (std::int64_t row = 0; row < call.rows; ++row) {
    const double* x = doubles(call.x) + row * call.columns;
    double mean = 0.0, squares = 0.0;
    for (std::int64_t c = 0; c < call.columns; ++c) mean += x[c] / count;
    for (std::int64_t c = 0; c < call.columns; ++c)
      squares += (x[c] - mean) * (x[c] - mean) / count;
    factors[row] = 1.0 / std::sqrt(squares + call.epsilon);
    for (std::int64_t c = 0; c < call.columns; ++c) {
      doubles(call.out)[row * call.columns + c] =
          (x[c] - mean) * factors[row] * doubles(call.gamma)[c] + doubles(call.beta)[c];
    }
  }
}

inline void layer_norm_backward(const LayerNormBackward& call, const double* factors) {
  const auto count = static_cast<double>(call.columns);
  const double *gamma = doubles(call.gamma), *beta = doubles(call.beta);
  double *grad_gamma = doubles(call.grad_gamma), *grad_beta = doubles(call.grad_beta);
  for (std::int64_t c = 0; c < call.columns; ++c) grad_gamma[c] = grad_beta[c] = 0.0;
  for (std::int64_t row = 0; row < call.rows; ++row) {
    const double* from = doubles(call.x != nullptr ? call.x : call.out) + row * call.columns;
    const double* grad = doubles(call.grad_out) + row * call.columns;
    double mean = 0.0, of_grad = 0.0, of_both = 0.0;
    for (std::int64_t c = 0; c < call.columns; ++c) mean += from[c] / count;
    std::vector<double> n(static_cast<std::size_t>(call.columns));
    for (std::size_t i = 0; i < n.size(); ++i) {
      n[i] = call.x != nullptr ? (from[i] - mean) * factors[row] : (from[i] - beta[i]) / gamma[i];
      of_grad += grad[i] * gamma[i] / count;
      of_both += grad[i] * gamma[i] * n[i] / count;
      grad_gamma[i] += grad[i] * n[i];
      grad_beta[i] += grad[i];
    }
    for (std::size_t i = 0; i < n.size(); ++i) {
      doubles(call.grad_x)[static_cast<std::size_t>(row * call.columns) + i] =
          factors[row] * (grad[i] * gamma[i] - of_grad - n[i] * of_both);
    }
  }
}

inline void bias_gelu(const BiasGelu& call) {
  const double root = std::sqrt(2.0 / M_PI);
  for (std::int64_t i = 0; i < call.rows * call.columns; ++i) {
    const double x = doubles(call.x)[i] + doubles(call.bias)[i % call.columns];
    const double t = std::tanh(root * (x + 0.044715 * x * x * x));
    const double slope =
        0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * root * (1.0 + 3.0 * 0.044715 * x * x);
    doubles(call.out)[i] =
        call.grad_out == nullptr ? 0.5 * x * (1.0 + t) : doubles(call.grad_out)[i] * slope;
  }
}

}  // namespace ds::reference

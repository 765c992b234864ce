#pragma once

// What transformer_inference has to compute, in float64, one row at a time.

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "transformer_inference.h"

namespace ds::reference {

using Row = std::vector<double>;

inline std::size_t index(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

// Of the sums s of transformer_inference.h. An empty beta is zeros.
inline Row norm(const Row& s, const Row& gamma, const Row& beta, double epsilon, NormKind kind) {
  const auto count = static_cast<double>(s.size());
  double mean = 0.0, squares = 0.0;
  if (kind == NormKind::layer) {
    for (const double x : s) mean += x / count;
  }
  for (const double x : s) squares += (x - mean) * (x - mean) / count;
  Row out(s.size());
  for (std::size_t i = 0; i < s.size(); ++i) {
    out[i] = (s[i] - mean) / std::sqrt(squares + epsilon) * gamma[i] + (beta.empty() ? 0 : beta[i]);
  }
  return out;
}

inline double activation(Activation kind, double x) {
  switch (kind) {
    case Activation::identity:
      return x;
    case Activation::relu:
      return x < 0.0 ? 0.0 : x;
    case Activation::gelu_tanh:
      return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::gelu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::silu:
      return x / (1.0 + std::exp(-x));
  }
  return x;
}

// Whether the query at `position` has a score for the key.
inline bool is_seen(std::int64_t position, std::int64_t key, bool causal, std::int64_t window) {
  return (!causal || key <= position) && (window <= 0 || key > position - window);
}

// Of scores with all their terms; those that there are not are −infinity.
inline Row softmax(const Row& scores) {
  double most = -std::numeric_limits<double>::infinity(), sum = 0.0;
  for (const double x : scores) most = x > most ? x : most;
  Row out(scores.size(), 0.0);
  if (std::isinf(most)) return out;
  for (const double x : scores) sum += std::exp(x - most);
  for (std::size_t i = 0; i < scores.size(); ++i) out[i] = std::exp(scores[i] - most) / sum;
  return out;
}

// The first `rotary_dim` elements of one head.
inline Row rotary(const Row& head, std::int64_t rotary_dim, std::int64_t position, double theta,
                  bool rotate_half) {
  Row out = head;
  for (std::int64_t p = 0; p < rotary_dim / 2; ++p) {
    const double angle =
        static_cast<double>(position) *
        std::pow(theta, -2.0 * static_cast<double>(p) / static_cast<double>(rotary_dim));
    const std::size_t a = index(rotate_half ? p : 2 * p);
    const std::size_t b = index(rotate_half ? p + rotary_dim / 2 : 2 * p + 1);
    out[a] = head[a] * std::cos(angle) - head[b] * std::sin(angle);
    out[b] = head[b] * std::cos(angle) + head[a] * std::sin(angle);
  }
  return out;
}

}  // namespace ds::reference

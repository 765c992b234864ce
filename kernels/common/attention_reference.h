#pragma once

// Attention of one slice in float64, with all its gradients: what cpu_attention_problem.h writes
// down, computed the plain way. Each number comes with the size of what was added up for it,
// against which the error of a float result is judged.

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "self_test.h"

namespace ds {

struct AttentionReference {
  std::int64_t queries, keys, dim;
  double scale;
  // [rows, dim]; bias [queries, keys] is all that is added to the scores, −∞ where nothing is seen.
  std::vector<double> q, k, v, grad, bias;

  // Filled by compute(); grad_s are the gradients of the scores, so of every bias.
  std::vector<Expected> out, lse, grad_q, grad_k, grad_v, grad_s;

  AttentionReference(std::int64_t queries_, std::int64_t keys_, std::int64_t dim_, double scale_)
      : queries(queries_), keys(keys_), dim(dim_), scale(scale_) {
    const auto size = [](std::int64_t a, std::int64_t b) {
      return static_cast<std::size_t>(a * b);
    };
    q.resize(size(queries, dim)), grad = q;
    k.resize(size(keys, dim)), v = k;
    bias.resize(size(queries, keys));
  }

  void compute() {
    out.assign(q.size(), {}), lse.assign(static_cast<std::size_t>(queries), {});
    grad_q.assign(q.size(), {}), grad_k.assign(k.size(), {}), grad_v.assign(k.size(), {});
    grad_s.assign(bias.size(), {});
    for (std::int64_t i = 0; i < queries; ++i) compute_row(i);
  }

 private:
  static void add(Expected& to, double term, double size) {
    to.value += term;
    to.scale += size;
  }

  void compute_row(std::int64_t i) {
    const auto at = [this](std::int64_t row, std::int64_t d) {
      return static_cast<std::size_t>(row * dim + d);
    };
    std::vector<double> p(static_cast<std::size_t>(keys));
    double most = -std::numeric_limits<double>::infinity(), size = 0, total = 0;
    for (std::int64_t j = 0; j < keys; ++j) {
      double dot = 0, dot_size = 0;
      for (std::int64_t d = 0; d < dim; ++d) {
        dot += q[at(i, d)] * k[at(j, d)];
        dot_size += std::fabs(q[at(i, d)] * k[at(j, d)]);
      }
      const double b = bias[static_cast<std::size_t>(i * keys + j)];
      p[static_cast<std::size_t>(j)] = dot * scale + b;
      most = std::max(most, dot * scale + b);
      if (std::isfinite(b)) size = std::max(size, dot_size * scale + std::fabs(b));
    }
    // An error of a score is one of its probability, relatively. What is below e^-86.5 of the
    // largest may be dropped as a whole: as the size of a sum it counts as much as float's epsilon
    // of it.
    const double spread = 1 + size, dropped = std::exp(-86.5) * 0x1p23;
    lse[static_cast<std::size_t>(i)] = {most, spread};
    if (std::isinf(most)) return;
    for (double& x : p) total += x = std::exp(x - most);
    for (double& x : p) x /= total;
    lse[static_cast<std::size_t>(i)].value += std::log(total);

    double delta = 0, delta_size = 0;
    for (std::int64_t j = 0; j < keys; ++j) {
      const double pj = p[static_cast<std::size_t>(j)];
      for (std::int64_t d = 0; d < dim; ++d) {
        const double g = grad[at(i, d)], term = pj * v[at(j, d)];
        add(out[at(i, d)], term, (pj + dropped) * std::fabs(v[at(j, d)]) * spread);
        add(grad_v[at(j, d)], pj * g, (pj + dropped) * std::fabs(g) * spread);
        delta += g * term;
        delta_size += std::fabs(g * term);
      }
    }
    for (std::int64_t j = 0; j < keys; ++j) {
      double slope = 0, slope_size = 0;
      for (std::int64_t d = 0; d < dim; ++d) {
        slope += grad[at(i, d)] * v[at(j, d)];
        slope_size += std::fabs(grad[at(i, d)] * v[at(j, d)]);
      }
      const double pj = p[static_cast<std::size_t>(j)];
      const Expected ds{pj * (slope - delta), (pj + dropped) * (slope_size + delta_size) * spread};
      grad_s[static_cast<std::size_t>(i * keys + j)] = ds;
      for (std::int64_t d = 0; d < dim; ++d) {
        add(grad_q[at(i, d)], scale * ds.value * k[at(j, d)],
            scale * ds.scale * std::fabs(k[at(j, d)]));
        add(grad_k[at(j, d)], scale * ds.value * q[at(i, d)],
            scale * ds.scale * std::fabs(q[at(i, d)]));
      }
    }
  }
};

// Beyond one rounding to the result's type, in ulp of it at the sums' size: what float arithmetic
// adds; and of 16-bit types, that the gradients start from a rounded output.
inline double attention_ulp(DType type, bool gradient) {
  if (type == DType::f32) return gradient ? 24.0 : 8.0;
  return gradient ? 1.0 : 0.01;
}

}  // namespace ds

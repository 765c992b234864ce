#pragma once

// What fused_adam has to compute, for one element, in float64.

#include <cmath>

#include "fused_adam.h"
#include "self_test.h"

namespace ds {

struct FusedAdamExpected {
  Expected param, exp_avg, exp_avg_sq;
};

// What the gradients are multiplied by; `norm` is theirs before that.
inline double grad_multiplier_reference(const GradientOptions& o, double norm) {
  const double clip = o.max_norm > 0 ? o.max_norm / (norm / o.scale + 1e-6) : 1.0;
  return (clip >= 1.0 ? 1.0 : clip) / o.scale;
}

inline FusedAdamExpected fused_adam_reference(double p, double g, double m, double v,
                                              const FusedAdamOptions& o, double multiplier = 1.0) {
  g *= multiplier;
  const double scale_g = std::fabs(g) + (o.adamw ? 0.0 : std::fabs(o.weight_decay * p));
  if (!o.adamw) g += o.weight_decay * p;
  const double new_m = o.beta1 * m + (1 - o.beta1) * g;
  const double new_v = o.beta2 * v + (1 - o.beta2) * g * g;
  const double scale_m = std::fabs(o.beta1 * m) + (1 - o.beta1) * scale_g;
  const double scale_v = o.beta2 * v + (1 - o.beta2) * scale_g * scale_g;
  const double t = static_cast<double>(o.step);
  const double correction1 = o.bias_correction ? 1 - std::pow(o.beta1, t) : 1.0;
  const double correction2 = o.bias_correction ? 1 - std::pow(o.beta2, t) : 1.0;
  const double denominator = std::sqrt(new_v) / std::sqrt(correction2) + o.eps;
  const double decay = o.adamw ? o.lr * o.weight_decay : 0.0;
  const double new_p = p - decay * p - o.lr / correction1 * new_m / denominator;
  // A relative error of v is half that in √v; scale_v > new_v only where g cancels.
  const double spread = new_v > 0 ? scale_v / new_v : 1.0;
  const double scale_p =
      std::fabs(p) + std::fabs(o.lr / correction1) * scale_m / denominator * spread;
  return {{new_p, scale_p}, {new_m, scale_m}, {new_v, scale_v}};
}

}  // namespace ds

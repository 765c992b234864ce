#pragma once

// What fused_lamb has to compute, for one tensor, in float64.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "fused_lamb.h"
#include "self_test.h"

namespace ds {

struct FusedLambExpected {
  std::vector<Expected> param, exp_avg, exp_avg_sq;
  double trust_ratio;
};

// m and v are rounded to the type of `old_m` and `old_v`, as the contract has it.
inline FusedLambExpected fused_lamb_reference(const Buffer& p, const Buffer& g, const Buffer& old_m,
                                              const Buffer& old_v, std::int64_t size,
                                              const FusedLambOptions& o, double multiplier = 1.0) {
  const double t = static_cast<double>(o.step);
  const double correction1 = o.bias_correction ? 1 - std::pow(o.beta1, t) : 1.0;
  const double correction2 = o.bias_correction ? 1 - std::pow(o.beta2, t) : 1.0;
  FusedLambExpected want;
  std::vector<double> u(static_cast<std::size_t>(size)), scale_u(u.size());
  double p_squares = 0, u_squares = 0;
  Buffer stored(old_m.dtype(), 1);
  const auto as_stored = [&](double x) {
    if (old_m.dtype() == DType::f32) return x;
    stored.set(0, x);
    return stored.get(0);
  };
  for (std::int64_t i = 0; i < size; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const double grad = g.get(i) * multiplier;
    const double m = o.beta1 * old_m.get(i) + (1 - o.beta1) * grad;
    const double v = o.beta2 * old_v.get(i) + (1 - o.beta2) * grad * grad;
    const double scale_m = std::fabs(o.beta1 * old_m.get(i)) + std::fabs((1 - o.beta1) * grad);
    want.exp_avg.push_back({m, scale_m});
    want.exp_avg_sq.push_back({v, v});
    const double denominator = o.eps_inside_sqrt
                                   ? std::sqrt(as_stored(v) / correction2 + o.eps)
                                   : std::sqrt(as_stored(v)) / std::sqrt(correction2) + o.eps;
    u[at] = as_stored(m) / correction1 / denominator + o.weight_decay * p.get(i);
    scale_u[at] = scale_m / correction1 / denominator + std::fabs(o.weight_decay * p.get(i));
    p_squares += p.get(i) * p.get(i);
    u_squares += u[at] * u[at];
  }
  want.trust_ratio = 1.0;
  if (p_squares > 0 && u_squares > 0) {
    want.trust_ratio = std::clamp(std::sqrt(p_squares / u_squares), o.min_ratio, o.max_ratio);
  }
  for (std::size_t i = 0; i < u.size(); ++i) {
    const double old_p = p.get(static_cast<std::int64_t>(i));
    const double step = o.lr * want.trust_ratio;
    want.param.push_back({old_p - step * u[i], std::fabs(old_p) + std::fabs(step) * scale_u[i]});
  }
  return want;
}

// How many ulp of `param_type` beyond the usual a parameter may be off: a state in 16 bits may have
// been rounded to the neighbour of what float64 gives, and u inherits a step of it.
inline double lamb_param_slack(DType param_type, DType state_type, Expected want) {
  if (state_type == DType::f32) return 0.0;
  const double update = want.scale - std::fabs(want.value);
  return 2.0 * (ulp_at(state_type, 1.0) * std::max(update, want.scale * 0.1)) /
         ulp_at(param_type, std::max(want.scale, std::fabs(want.value)));
}

}  // namespace ds

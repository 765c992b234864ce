#pragma once

#include <cmath>

#include "fused_lamb.h"

namespace ds {

// The options as the kernel wants them: everything that is the same for all elements is computed
// once, in double, and rounded once. On the host, or by one thread of the device.
struct FusedLambFactors {
  float weight1, rest1;  // 1 - beta1 and beta1.
  float weight2, rest2;
  float inv_correction1;  // 1 / (1 - beta1^step)
  float inv_correction2;  // 1 / √(1 - beta2^step)
  float eps;              // One of these is 0:
  float eps_inside;       // it counts as a part of v.
  float weight_decay;
  float lr;
  float min_ratio, max_ratio;
  float grad_multiplier;
  bool skip;
};

DS_HOST_DEVICE inline FusedLambFactors factors_of(const FusedLambOptions& o) {
  const auto step = static_cast<double>(o.step);
  const double correction1 = o.bias_correction ? 1.0 - std::pow(o.beta1, step) : 1.0;
  const double correction2 = o.bias_correction ? 1.0 - std::pow(o.beta2, step) : 1.0;
  FusedLambFactors f;
  f.weight1 = static_cast<float>(1.0 - o.beta1);
  f.rest1 = static_cast<float>(o.beta1);
  f.weight2 = static_cast<float>(1.0 - o.beta2);
  f.rest2 = static_cast<float>(o.beta2);
  f.inv_correction1 = static_cast<float>(1.0 / correction1);
  f.inv_correction2 = static_cast<float>(1.0 / std::sqrt(correction2));
  f.eps = o.eps_inside_sqrt ? 0.0f : static_cast<float>(o.eps);
  f.eps_inside = o.eps_inside_sqrt ? static_cast<float>(o.eps * correction2) : 0.0f;
  f.weight_decay = static_cast<float>(o.weight_decay);
  f.lr = static_cast<float>(o.lr);
  f.min_ratio = static_cast<float>(o.min_ratio);
  f.max_ratio = static_cast<float>(o.max_ratio);
  f.grad_multiplier = 1.0f;
  f.skip = false;
  return f;
}

// Sums over a tensor, or a part of it.
struct NormSquares {
  double p, u;
};

DS_HOST_DEVICE inline float trust_ratio(const FusedLambFactors& f, const NormSquares& sum) {
  if (sum.p == 0.0 || sum.u == 0.0) return 1.0f;
  const auto ratio = static_cast<float>(std::sqrt(sum.p / sum.u));
  return ratio < f.min_ratio ? f.min_ratio : ratio > f.max_ratio ? f.max_ratio : ratio;
}

}  // namespace ds

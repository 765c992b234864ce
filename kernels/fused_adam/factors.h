#pragma once

#include <cmath>

#include "fused_adam.h"

namespace ds {

// The options as the kernel wants them: everything that is the same for all elements is computed
// once, in double, and rounded once. On the host, or by one thread of the device.
struct FusedAdamFactors {
  float weight1, rest1;  // 1 - beta1 and beta1.
  float weight2, rest2;
  float step_size;        // lr / (1 - beta1^step)
  float inv_correction2;  // 1 / √(1 - beta2^step)
  float eps;
  float l2;     // weight_decay, or 0 with adamw.
  float decay;  // lr·weight_decay, or 0 without adamw.
  float grad_multiplier;
  bool skip;
};

DS_HOST_DEVICE inline FusedAdamFactors factors_of(const FusedAdamOptions& o) {
  const auto step = static_cast<double>(o.step);
  const double correction1 = o.bias_correction ? 1.0 - std::pow(o.beta1, step) : 1.0;
  const double correction2 = o.bias_correction ? 1.0 - std::pow(o.beta2, step) : 1.0;
  FusedAdamFactors f;
  f.weight1 = static_cast<float>(1.0 - o.beta1);
  f.rest1 = static_cast<float>(o.beta1);
  f.weight2 = static_cast<float>(1.0 - o.beta2);
  f.rest2 = static_cast<float>(o.beta2);
  f.step_size = static_cast<float>(o.lr / correction1);
  f.inv_correction2 = static_cast<float>(1.0 / std::sqrt(correction2));
  f.eps = static_cast<float>(o.eps);
  f.l2 = static_cast<float>(o.adamw ? 0.0 : o.weight_decay);
  f.decay = static_cast<float>(o.adamw ? o.lr * o.weight_decay : 0.0);
  f.grad_multiplier = 1.0f;
  f.skip = false;
  return f;
}

}  // namespace ds

#pragma once

#include <cmath>

#include "cpu_adam.h"

namespace ds {

// The options as the kernels want them: everything that is the same for all elements is computed
// once, in double, and rounded once.
struct AdamFactors {
  float weight1, rest1;  // 1 - beta1 and beta1.
  float weight2, rest2;
  float step_size;        // lr / (1 - beta1^step)
  float inv_correction2;  // 1 / √(1 - beta2^step)
  float eps;
  float l2;          // weight_decay, or 0 with adamw.
  float decay;       // lr·weight_decay, or 0 without adamw.
  float undecay;     // decay / (1 - decay)
  float inv1, inv2;  // 1 / beta1, 1 / beta2.
  float grad_multiplier;
  bool skip;
};

inline AdamFactors factors_of(const AdamOptions& o) {
  const auto step = static_cast<double>(o.step);
  const double correction1 = o.bias_correction ? 1.0 - std::pow(o.beta1, step) : 1.0;
  const double correction2 = o.bias_correction ? 1.0 - std::pow(o.beta2, step) : 1.0;
  const double decay = o.adamw ? o.lr * o.weight_decay : 0.0;
  AdamFactors f;
  f.weight1 = static_cast<float>(1.0 - o.beta1);
  f.rest1 = static_cast<float>(o.beta1);
  f.weight2 = static_cast<float>(1.0 - o.beta2);
  f.rest2 = static_cast<float>(o.beta2);
  f.step_size = static_cast<float>(o.lr / correction1);
  f.inv_correction2 = static_cast<float>(1.0 / std::sqrt(correction2));
  f.eps = static_cast<float>(o.eps);
  f.l2 = static_cast<float>(o.adamw ? 0.0 : o.weight_decay);
  f.decay = static_cast<float>(decay);
  f.undecay = static_cast<float>(decay / (1.0 - decay));
  f.inv1 = static_cast<float>(1.0 / o.beta1);
  f.inv2 = static_cast<float>(1.0 / o.beta2);
  f.grad_multiplier = 1.0f;
  f.skip = false;
  return f;
}

}  // namespace ds

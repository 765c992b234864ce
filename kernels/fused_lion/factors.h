#pragma once

#include "fused_lion.h"

namespace ds {

// The options as the kernel wants them, each computed once in double and rounded once. On the host,
// or by one thread of the device.
struct FusedLionFactors {
  float beta1, weight1;  // Only the sign of their sum counts.
  float weight2, rest2;  // 1 - beta2 and beta2.
  float lr;
  float decay;  // lr·weight_decay
  float grad_multiplier;
  bool skip;
};

DS_HOST_DEVICE inline FusedLionFactors factors_of(const FusedLionOptions& o) {
  FusedLionFactors f;
  f.beta1 = static_cast<float>(o.beta1);
  f.weight1 = static_cast<float>(1.0 - o.beta1);
  f.weight2 = static_cast<float>(1.0 - o.beta2);
  f.rest2 = static_cast<float>(o.beta2);
  f.lr = static_cast<float>(o.lr);
  f.decay = static_cast<float>(o.lr * o.weight_decay);
  f.grad_multiplier = 1.0f;
  f.skip = false;
  return f;
}

}  // namespace ds

#pragma once

#include "cpu_lion.h"

namespace ds {

struct LionFactors {
  float beta1, weight1;  // Only the sign of their sum counts.
  float weight2, rest2;  // 1 - beta2 and beta2.
  float lr;
  float decay;  // lr·weight_decay
  float grad_multiplier;
  bool skip;
};

inline LionFactors factors_of(const LionOptions& o) {
  return {static_cast<float>(o.beta1),
          static_cast<float>(1.0 - o.beta1),
          static_cast<float>(1.0 - o.beta2),
          static_cast<float>(o.beta2),
          static_cast<float>(o.lr),
          static_cast<float>(o.lr * o.weight_decay),
          1.0f,
          false};
}

}  // namespace ds

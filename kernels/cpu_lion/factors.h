#pragma once

namespace ds {

struct LionFactors {
  float beta1, weight1;         // Only the sign of their sum counts.
  float weight2, rest2;         // 1 - beta2 and beta2.
  float lr_magnitude, lr_sign;  // |lr|, and 1 or -1.
  float decay;                  // lr·weight_decay
};

}  // namespace ds

#pragma once

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
};

}  // namespace ds

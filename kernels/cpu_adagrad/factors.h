#pragma once

#include "cpu_adagrad.h"

namespace ds {

struct AdagradFactors {
  float lr, eps, weight_decay;
  float grad_multiplier;
  bool skip;
};

inline AdagradFactors factors_of(const AdagradOptions& o) {
  return {static_cast<float>(o.lr), static_cast<float>(o.eps), static_cast<float>(o.weight_decay),
          1.0f, false};
}

}  // namespace ds

#pragma once

// What fused_lion has to compute, for one element, in float64.

#include <cmath>
#include <limits>

#include "fused_lion.h"
#include "self_test.h"

namespace ds {

struct FusedLionExpected {
  Expected param, exp_avg;
  // True if the two terms of c cancel to less than float can tell from 0: then the sign, and with
  // it the parameter, may be that of a neighbour.
  bool sign_is_open;
};

inline FusedLionExpected fused_lion_reference(double p, double g, double m,
                                              const FusedLionOptions& o, double multiplier = 1.0) {
  g *= multiplier;
  const double c = o.beta1 * m + (1 - o.beta1) * g;
  const double scale_c = std::fabs(o.beta1 * m) + std::fabs((1 - o.beta1) * g);
  const double sign = std::isnan(c) ? c : c > 0 ? 1.0 : c < 0 ? -1.0 : 0.0;
  const double decay = o.lr * o.weight_decay;
  return {{p - decay * p - o.lr * sign, std::fabs(p) + std::fabs(o.lr)},
          {o.beta2 * m + (1 - o.beta2) * g, std::fabs(o.beta2 * m) + std::fabs((1 - o.beta2) * g)},
          c != 0 && std::fabs(c) < 4 * std::numeric_limits<float>::epsilon() * scale_c};
}

}  // namespace ds

#pragma once

// What cpu_adagrad has to compute, for one element, in float64.

#include <cmath>

#include "cpu_adagrad.h"
#include "self_test.h"

namespace ds {

struct AdagradExpected {
  Expected param, exp_avg_sq;
};

inline AdagradExpected adagrad_reference(double p, double g, double v, const AdagradOptions& o) {
  const double scale_g = std::fabs(g) + std::fabs(o.weight_decay * p);
  g += o.weight_decay * p;
  const double new_v = v + g * g;
  const double scale_v = v + scale_g * scale_g;
  const double denominator = std::sqrt(new_v) + o.eps;
  const double new_p = denominator > 0 ? p - o.lr * g / denominator : p;
  const double spread = new_v > 0 ? scale_v / new_v : 1.0;
  const double scale_p =
      std::fabs(p) + (denominator > 0 ? std::fabs(o.lr) * scale_g / denominator * spread : 0.0);
  return {{new_p, scale_p}, {new_v, scale_v}};
}

}  // namespace ds

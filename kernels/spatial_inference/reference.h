#pragma once

// What spatial_inference has to compute, for one element, in float64.

#include <cmath>

#include "self_test.h"

namespace ds {

// Zeros stand for what is not there.
inline Expected spatial_inference_reference(double x, double bias, double other,
                                            double other_bias) {
  return {(x + bias) + (other + other_bias),
          std::fabs(x) + std::fabs(bias) + std::fabs(other) + std::fabs(other_bias)};
}

}  // namespace ds

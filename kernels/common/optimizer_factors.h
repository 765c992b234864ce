#pragma once

// What the optimizers do before their first element, on the CPU and, by one thread, on a GPU: what
// to multiply the gradients by, and numbers that lie in memory instead of those of the options.

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "ds_op.h"
#include "ds_types.h"

namespace ds {

// Unscales and clips in one product; a norm that is NaN clips to NaN, so that it is seen.
DS_HOST_DEVICE inline float grad_multiplier(GradientOptions gradients,
                                            const OptimizerScalars& scalars) {
  if (scalars.grad_scale != nullptr) gradients.scale = *scalars.grad_scale;
  double multiplier = 1.0 / gradients.scale;
  if (scalars.grad_norm != nullptr && gradients.max_norm > 0.0) {
    const double norm = *scalars.grad_norm * multiplier;
    const double clip = gradients.max_norm / (norm + 1e-6);
    if (!(clip >= 1.0)) multiplier *= clip;
  }
  return static_cast<float>(multiplier);
}

// The options as the kernels want them, by the op's factors_of. Counts the step in `scalars`,
// unless it is skipped. Options have `kHasStep`: whether the step is a part of the formula.
template <class Options>
DS_HOST_DEVICE auto resolved_factors(Options options, const GradientOptions& gradients,
                                     const OptimizerScalars& scalars) {
  const bool skip = scalars.found_inf != nullptr && *scalars.found_inf != 0.0f;
  if (scalars.lr != nullptr) options.lr = *scalars.lr;
  if (scalars.step != nullptr) {
    const std::int64_t step = *scalars.step + 1;
    if constexpr (Options::kHasStep) options.step = step;
    if (!skip) *scalars.step = step;
  }
  auto factors = factors_of(options);
  factors.grad_multiplier = grad_multiplier(gradients, scalars);
  factors.skip = skip;
  return factors;
}

// Throws std::invalid_argument.
inline void check_gradients(const char* function, const GradientOptions& gradients,
                            const OptimizerScalars& scalars) {
  const auto refuse = [&](const char* what) {
    throw std::invalid_argument(std::string(function) + ": " + what);
  };
  if (!(gradients.scale > 0.0) || !std::isfinite(gradients.scale)) {
    refuse("the gradients' scale must be positive and finite");
  }
  if (!(gradients.max_norm >= 0.0)) refuse("max_norm must not be negative");
  if (gradients.max_norm > 0.0 && scalars.grad_norm == nullptr) {
    refuse("max_norm needs the gradients' norm, where the parameters are");
  }
}

}  // namespace ds

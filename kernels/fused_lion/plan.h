#pragma once

// What a call is refused for: the same words on the CPU and on a GPU.

#include <cmath>
#include <stdexcept>
#include <string>

#include "cpu_optimizer.h"
#include "fused_lion.h"
#include "optimizer_factors.h"

namespace ds::fused_lion {

inline constexpr OptimizerNames kNames{"ds::fused_lion_step", {"exp_avgs", nullptr}};

// Throws std::invalid_argument for options out of range.
inline void check_options(const FusedLionOptions& o) {
  const auto refuse = [&](const char* what, double value) {
    throw std::invalid_argument(std::string(kNames.function) + ": " + what + " (it is " +
                                std::to_string(value) + ")");
  };
  if (!(o.beta1 >= 0.0 && o.beta1 < 1.0)) refuse("beta1 must be in [0, 1)", o.beta1);
  if (!(o.beta2 >= 0.0 && o.beta2 < 1.0)) refuse("beta2 must be in [0, 1)", o.beta2);
  if (!std::isfinite(o.lr)) refuse("lr must be finite", o.lr);
  if (!std::isfinite(o.weight_decay)) refuse("weight_decay must be finite", o.weight_decay);
}

}  // namespace ds::fused_lion

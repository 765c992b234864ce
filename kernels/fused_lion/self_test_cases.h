#pragma once

// What the self-test of either device computes.

#include "fused_lion.h"
#include "optimizer_case.h"
#include "reference.h"

namespace ds::fused_lion {

// `at` is the case itself, or what holds it on a device.
template <class Where>
FusedLionTensor tensor_of(const OptimizerCase& c, Where& at) {
  return {at.p.data(),   at.g.data(),  at.m.data(),   at.copy.data(), c.size,
          c.types.param, c.types.grad, c.types.state, c.copy.dtype()};
}

// `old` is the case before the step.
inline void check_step(Comparison& comparison, const OptimizerCase& old, const OptimizerCase& now,
                       const FusedLionOptions& options, double multiplier) {
  for (std::int64_t i = 0; i < now.size; ++i) {
    const FusedLionExpected want =
        fused_lion_reference(old.p.get(i), old.g.get(i), old.m.get(i), options, multiplier);
    comparison.check("exp_avg", i, now.m, want.exp_avg);
    if (want.sign_is_open) continue;
    comparison.check("param", i, now.p, want.param);
    comparison.check("copy", i, now.copy, want.param);
  }
  now.check_guards(comparison);
}

// All types, with a copy and a scale; `step(case, options, gradients)` makes the step.
template <class Step>
void test_all_types(Comparison& comparison, std::int64_t size, const Step& step) {
  for (const OptimizerTypes& types : all_fused_optimizer_types()) {
    FusedLionOptions options;
    options.lr = 0.01;
    options.weight_decay = 0.1;
    OptimizerCase c(types, size, 4.0);
    const OptimizerCase old = c;
    step(c, options, GradientOptions{4.0, 0.0});
    check_step(comparison, old, c, options, 0.25);
  }
}

}  // namespace ds::fused_lion

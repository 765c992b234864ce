#pragma once

// What the self-test of either device computes.

#include "fused_adam.h"
#include "optimizer_case.h"
#include "reference.h"

namespace ds::fused_adam {

// `at` is the case itself, or what holds it on a device.
template <class Where>
FusedAdamTensor tensor_of(const OptimizerCase& c, Where& at) {
  return {at.p.data(), at.g.data(),   at.m.data(),  at.v.data(),   at.copy.data(),
          c.size,      c.types.param, c.types.grad, c.types.state, c.copy.dtype()};
}

// `old` is the case before the step.
inline void check_step(Comparison& comparison, const OptimizerCase& old, const OptimizerCase& now,
                       const FusedAdamOptions& options, double multiplier) {
  for (std::int64_t i = 0; i < now.size; ++i) {
    const FusedAdamExpected want = fused_adam_reference(old.p.get(i), old.g.get(i), old.m.get(i),
                                                        old.v.get(i), options, multiplier);
    comparison.check("param", i, now.p, want.param);
    comparison.check("exp_avg", i, now.m, want.exp_avg);
    comparison.check("exp_avg_sq", i, now.v, want.exp_avg_sq);
    comparison.check("copy", i, now.copy, want.param);
  }
  now.check_guards(comparison);
}

// All types, with a copy and a scale; `step(case, options, gradients)` makes the step.
template <class Step>
void test_all_types(Comparison& comparison, std::int64_t size, const Step& step) {
  for (const OptimizerTypes& types : all_fused_optimizer_types()) {
    FusedAdamOptions options;
    options.step = 3;
    options.lr = 0.01;
    options.weight_decay = 0.1;
    options.adamw = types.grad != DType::f16;
    OptimizerCase c(types, size, 4.0);
    const OptimizerCase old = c;
    step(c, options, GradientOptions{4.0, 0.0});
    check_step(comparison, old, c, options, 0.25);
  }
}

}  // namespace ds::fused_adam

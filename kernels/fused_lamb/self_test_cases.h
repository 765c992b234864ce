#pragma once

// What the self-test of either device computes.

#include "fused_lamb.h"
#include "optimizer_case.h"
#include "reference.h"

namespace ds::fused_lamb {

// `at` is the case itself, or what holds it on a device.
template <class Where>
FusedLambTensor tensor_of(const OptimizerCase& c, Where& at) {
  return {at.p.data(), at.g.data(),   at.m.data(),  at.v.data(),   at.copy.data(),
          c.size,      c.types.param, c.types.grad, c.types.state, c.copy.dtype()};
}

// `old` is the case before the step.
inline void check_step(Comparison& comparison, const OptimizerCase& old, const OptimizerCase& now,
                       const FusedLambOptions& options, double multiplier) {
  const FusedLambExpected want =
      fused_lamb_reference(old.p, old.g, old.m, old.v, now.size, options, multiplier);
  if (now.size > 0) {
    comparison.check("trust_ratio", 0, now.ratio, {want.trust_ratio, want.trust_ratio});
  }
  for (std::int64_t i = 0; i < now.size; ++i) {
    const auto at = static_cast<std::size_t>(i);
    comparison.check("exp_avg", i, now.m, want.exp_avg[at]);
    comparison.check("exp_avg_sq", i, now.v, want.exp_avg_sq[at]);
    // A state may be rounded to the neighbour: an ulp of it is one of u.
    comparison.check("param", i, now.p, want.param[at],
                     lamb_param_slack(now.types.param, now.types.state, want.param[at]));
    comparison.check("copy", i, now.copy, want.param[at],
                     lamb_param_slack(now.copy.dtype(), now.types.state, want.param[at]));
  }
  now.check_guards(comparison);
}

// All types, with a copy and a scale; `step(case, options, gradients)` makes the step.
template <class Step>
void test_all_types(Comparison& comparison, std::int64_t size, const Step& step) {
  for (const OptimizerTypes& types : all_fused_optimizer_types()) {
    FusedLambOptions options;
    options.step = 3;
    options.lr = 0.01;
    options.weight_decay = 0.1;
    OptimizerCase c(types, size, 4.0);
    const OptimizerCase old = c;
    step(c, options, GradientOptions{4.0, 0.0});
    check_step(comparison, old, c, options, 0.25);
  }
}

}  // namespace ds::fused_lamb

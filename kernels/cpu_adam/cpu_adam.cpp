#include "cpu_adam.h"

#include <cmath>
#include <stdexcept>
#include <string>

#include "cpu_optimizer.h"
#include "factors.h"
#include "optimizer_factors.h"
#include "reference.h"
#include "self_test.h"

#define DS_KERNEL_FILE "kernel.h"
#include "for_each_isa.h"

namespace ds {
namespace {

void check_options(const char* function, const AdamOptions& o) {
  const auto refuse = [&](const char* what, double value) {
    throw std::invalid_argument(std::string(function) + ": " + what + " (it is " +
                                std::to_string(value) + ")");
  };
  if (o.step < 1) refuse("step counts from 1", static_cast<double>(o.step));
  if (!(o.beta1 >= 0.0 && o.beta1 < 1.0)) refuse("beta1 must be in [0, 1)", o.beta1);
  if (!(o.beta2 >= 0.0 && o.beta2 < 1.0)) refuse("beta2 must be in [0, 1)", o.beta2);
  if (!(o.eps >= 0.0)) refuse("eps must not be negative", o.eps);
  if (!std::isfinite(o.lr)) refuse("lr must be finite", o.lr);
  if (!std::isfinite(o.weight_decay)) refuse("weight_decay must be finite", o.weight_decay);
}

Kernel step_kernel(CpuIsa isa, const OptimizerTensor& tensor) {
  return DS_ON_PATH(isa, step_kernel(tensor));
}

Kernel rollback_kernel(CpuIsa isa, const OptimizerTensor& tensor) {
  return DS_ON_PATH(isa, rollback_kernel(tensor));
}

std::vector<OptimizerTensor> to_list(const AdamTensor* tensors, std::size_t count) {
  std::vector<OptimizerTensor> list;
  list.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const AdamTensor& t = tensors[i];
    list.push_back({t.param,
                    t.grad,
                    {t.exp_avg, t.exp_avg_sq},
                    t.size,
                    t.param_dtype,
                    t.grad_dtype,
                    t.state_dtype,
                    t.copy_dtype,
                    t.copy});
  }
  return list;
}

// Sizes that leave a tail on every path, gradients that are zero, tiny or large, and all types.
void self_test(CpuIsa isa, Comparison& comparison) {
  constexpr std::int64_t kSize = 331;
  for (const OptimizerTypes& types : all_optimizer_types()) {
    for (const bool adamw : {true, false}) {
      AdamOptions options;
      options.step = 3;
      options.lr = 0.01;
      options.weight_decay = 0.1;
      options.adamw = adamw;
      Buffer p(types.param, kSize), g(types.grad, kSize), m(types.state, kSize),
          v(types.state, kSize);
      Random random(7);
      for (std::int64_t i = 0; i < kSize; ++i) {
        p.set(i, random.next());
        g.set(i, i % 11 == 0 ? 0.0 : random.next());
        m.set(i, 0.1 * random.next());
        v.set(i, std::fabs(0.01 * random.next()));
      }
      const Buffer old_p = p, old_m = m, old_v = v;
      const AdamTensor tensor{p.data(), g.data(),    m.data(),   v.data(),
                              kSize,    types.param, types.grad, types.state};
      cpu_adam_step(&tensor, 1, options, {1, isa});
      for (std::int64_t i = 0; i < kSize; ++i) {
        const AdamExpected want =
            adam_reference(old_p.get(i), g.get(i), old_m.get(i), old_v.get(i), options);
        comparison.check("param", i, p, want.param);
        comparison.check("exp_avg", i, m, want.exp_avg);
        comparison.check("exp_avg_sq", i, v, want.exp_avg_sq);
      }
      if (!p.guard_is_intact() || !m.guard_is_intact() || !v.guard_is_intact()) {
        comparison.fail("wrote behind the last element");
      }
    }
  }
}

}  // namespace

void cpu_adam_step(const AdamTensor* tensors, std::size_t count, const AdamOptions& options,
                   const CpuOptions& cpu, const GradientOptions& gradients,
                   const OptimizerScalars& scalars) {
  constexpr OptimizerNames kNames{"ds::cpu_adam_step", {"exp_avgs", "exp_avg_sqs"}};
  check_options(kNames.function, options);
  check_gradients(kNames.function, gradients, scalars);
  run_optimizer(to_list(tensors, count), kNames, cpu, step_kernel,
                [&] { return resolved_factors(options, gradients, scalars); });
}

void cpu_adam_rollback(const AdamTensor* tensors, std::size_t count, const AdamOptions& options,
                       const CpuOptions& cpu, const GradientOptions& gradients) {
  constexpr OptimizerNames kNames{"ds::cpu_adam_rollback", {"exp_avgs", "exp_avg_sqs"}};
  check_options(kNames.function, options);
  if (options.beta1 == 0.0 || options.beta2 == 0.0) {
    throw std::invalid_argument(std::string(kNames.function) +
                                ": a step with a beta of 0 cannot be undone");
  }
  check_gradients(kNames.function, gradients, {});
  const AdamFactors factors = resolved_factors(options, gradients, {});
  if (!std::isfinite(factors.undecay)) {
    throw std::invalid_argument(std::string(kNames.function) +
                                ": a step with lr times weight_decay of 1 cannot be undone");
  }
  run_optimizer(to_list(tensors, count), kNames, cpu, rollback_kernel, [&] { return factors; });
}

}  // namespace ds

int ds_self_test_cpu_adam(const char* device, char* detail, unsigned long detail_size) {
  return ds::cpu_self_test(device, detail, detail_size, "15 type combinations", ds::self_test);
}

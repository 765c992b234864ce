#include "cpu_adam.h"

#include <cmath>
#include <stdexcept>
#include <string>

#include "cpu_optimizer.h"
#include "factors.h"
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

AdamFactors factors_of(const AdamOptions& o) {
  const auto step = static_cast<double>(o.step);
  const double correction1 = o.bias_correction ? 1.0 - std::pow(o.beta1, step) : 1.0;
  const double correction2 = o.bias_correction ? 1.0 - std::pow(o.beta2, step) : 1.0;
  const double decay = o.adamw ? o.lr * o.weight_decay : 0.0;
  AdamFactors f;
  f.weight1 = static_cast<float>(1.0 - o.beta1);
  f.rest1 = static_cast<float>(o.beta1);
  f.weight2 = static_cast<float>(1.0 - o.beta2);
  f.rest2 = static_cast<float>(o.beta2);
  f.step_size = static_cast<float>(o.lr / correction1);
  f.inv_correction2 = static_cast<float>(1.0 / std::sqrt(correction2));
  f.eps = static_cast<float>(o.eps);
  f.l2 = static_cast<float>(o.adamw ? 0.0 : o.weight_decay);
  f.decay = static_cast<float>(decay);
  f.undecay = static_cast<float>(decay / (1.0 - decay));
  f.inv1 = static_cast<float>(1.0 / o.beta1);
  f.inv2 = static_cast<float>(1.0 / o.beta2);
  return f;
}

Kernel step_kernel(CpuIsa isa, const OptimizerTensor& tensor) {
  switch (isa) {
#if defined(__x86_64__)
    case CpuIsa::avx512_bf16:
      return avx512_bf16::kernel_for<avx512_bf16::AdamStep>(tensor);
    case CpuIsa::avx512:
      return avx512::kernel_for<avx512::AdamStep>(tensor);
    case CpuIsa::avx2:
      return avx2::kernel_for<avx2::AdamStep>(tensor);
#endif
    default:
      return scalar::kernel_for<scalar::AdamStep>(tensor);
  }
}

Kernel rollback_kernel(CpuIsa isa, const OptimizerTensor& tensor) {
  switch (isa) {
#if defined(__x86_64__)
    case CpuIsa::avx512_bf16:
      return avx512_bf16::kernel_for<avx512_bf16::AdamRollback>(tensor);
    case CpuIsa::avx512:
      return avx512::kernel_for<avx512::AdamRollback>(tensor);
    case CpuIsa::avx2:
      return avx2::kernel_for<avx2::AdamRollback>(tensor);
#endif
    default:
      return scalar::kernel_for<scalar::AdamRollback>(tensor);
  }
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
                    t.state_dtype});
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
                   const CpuOptions& cpu) {
  constexpr OptimizerNames kNames{"ds::cpu_adam_step", {"exp_avgs", "exp_avg_sqs"}};
  check_options(kNames.function, options);
  const AdamFactors factors = factors_of(options);
  run_optimizer(to_list(tensors, count), kNames, cpu, step_kernel, &factors);
}

void cpu_adam_rollback(const AdamTensor* tensors, std::size_t count, const AdamOptions& options,
                       const CpuOptions& cpu) {
  constexpr OptimizerNames kNames{"ds::cpu_adam_rollback", {"exp_avgs", "exp_avg_sqs"}};
  check_options(kNames.function, options);
  if (options.beta1 == 0.0 || options.beta2 == 0.0) {
    throw std::invalid_argument(std::string(kNames.function) +
                                ": a step with a beta of 0 cannot be undone");
  }
  const AdamFactors factors = factors_of(options);
  if (!std::isfinite(factors.undecay)) {
    throw std::invalid_argument(std::string(kNames.function) +
                                ": a step with lr times weight_decay of 1 cannot be undone");
  }
  run_optimizer(to_list(tensors, count), kNames, cpu, rollback_kernel, &factors);
}

}  // namespace ds

int ds_self_test_cpu_adam(const char* device, char* detail, unsigned long detail_size) {
  return ds::cpu_self_test(device, detail, detail_size, "15 type combinations", ds::self_test);
}

#include "cpu_adagrad.h"

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

constexpr OptimizerNames kNames{"ds::cpu_adagrad_step", {"exp_avg_sqs"}};

void check_options(const AdagradOptions& o) {
  const auto refuse = [&](const char* what, double value) {
    throw std::invalid_argument(std::string(kNames.function) + ": " + what + " (it is " +
                                std::to_string(value) + ")");
  };
  if (!(o.eps >= 0.0)) refuse("eps must not be negative", o.eps);
  if (!std::isfinite(o.lr)) refuse("lr must be finite", o.lr);
  if (!std::isfinite(o.weight_decay)) refuse("weight_decay must be finite", o.weight_decay);
}

Kernel step_kernel(CpuIsa isa, const OptimizerTensor& tensor) {
  return DS_ON_PATH(isa, step_kernel(tensor));
}

void self_test(CpuIsa isa, Comparison& comparison) {
  constexpr std::int64_t kSize = 331;  // Leaves a tail on every path.
  for (const OptimizerTypes& types : all_optimizer_types()) {
    AdagradOptions options;
    options.weight_decay = 0.1;
    Buffer p(types.param, kSize), g(types.grad, kSize), v(types.state, kSize);
    Random random(7);
    for (std::int64_t i = 0; i < kSize; ++i) {
      p.set(i, random.next());
      g.set(i, i % 11 == 0 ? 0.0 : random.next());
      v.set(i, std::fabs(random.next()));
    }
    const Buffer old_p = p, old_v = v;
    const AdagradTensor tensor{p.data(),    g.data(),   v.data(),   kSize,
                               types.param, types.grad, types.state};
    cpu_adagrad_step(&tensor, 1, options, {1, isa});
    for (std::int64_t i = 0; i < kSize; ++i) {
      const AdagradExpected want = adagrad_reference(old_p.get(i), g.get(i), old_v.get(i), options);
      comparison.check("param", i, p, want.param);
      comparison.check("exp_avg_sq", i, v, want.exp_avg_sq);
    }
    if (!p.guard_is_intact() || !v.guard_is_intact()) {
      comparison.fail("wrote behind the last element");
    }
  }
}

}  // namespace

void cpu_adagrad_step(const AdagradTensor* tensors, std::size_t count,
                      const AdagradOptions& options, const CpuOptions& cpu,
                      const GradientOptions& gradients, const OptimizerScalars& scalars) {
  check_options(options);
  check_gradients(kNames.function, gradients, scalars);
  std::vector<OptimizerTensor> list;
  list.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const AdagradTensor& t = tensors[i];
    list.push_back({t.param,
                    t.grad,
                    {t.exp_avg_sq, nullptr},
                    t.size,
                    t.param_dtype,
                    t.grad_dtype,
                    t.state_dtype,
                    t.copy_dtype,
                    t.copy});
  }
  run_optimizer(list, kNames, cpu, step_kernel,
                [&] { return resolved_factors(options, gradients, scalars); });
}

}  // namespace ds

int ds_self_test_cpu_adagrad(const char* device, char* detail, unsigned long detail_size) {
  return ds::cpu_self_test(device, detail, detail_size, "15 type combinations", ds::self_test);
}

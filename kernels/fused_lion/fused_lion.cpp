// The op on the CPU, and the self-test of both devices.

#include "fused_lion.h"

#include <vector>

#include "cpu_optimizer.h"
#include "factors.h"
#include "plan.h"
#include "self_test_cases.h"
#ifdef DS_WITH_CUDA
#include "launch.h"
#endif

#define DS_KERNEL_FILE "kernel.h"
#include "for_each_isa.h"

namespace ds {
namespace {

Kernel step_kernel(CpuIsa isa, const OptimizerTensor& tensor) {
  return DS_ON_PATH(isa, step_kernel(tensor));
}

void self_test(CpuIsa isa, Comparison& comparison) {
  constexpr std::int64_t kSize = 331;  // Leaves a tail on every path.
  fused_lion::test_all_types(comparison, kSize, [&](OptimizerCase& c, const auto&... options) {
    const FusedLionTensor tensor = fused_lion::tensor_of(c, c);
    fused_lion_step(&tensor, 1, options..., {}, CpuOptions{1, isa});
  });
}

}  // namespace

void fused_lion_step(const FusedLionTensor* tensors, std::size_t count,
                     const FusedLionOptions& options, const GradientOptions& gradients,
                     const OptimizerScalars& scalars, const CpuOptions& cpu) {
  fused_lion::check_options(options);
  check_gradients(fused_lion::kNames.function, gradients, scalars);
  std::vector<OptimizerTensor> list;
  list.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const FusedLionTensor& t = tensors[i];
    list.push_back({t.param,
                    t.grad,
                    {t.exp_avg, nullptr},
                    t.size,
                    t.param_dtype,
                    t.grad_dtype,
                    t.state_dtype,
                    t.copy_dtype,
                    t.copy});
  }
  run_optimizer(list, fused_lion::kNames, cpu, step_kernel,
                [&] { return resolved_factors(options, gradients, scalars); });
}

}  // namespace ds

int ds_self_test_fused_lion(const char* device, char* detail, unsigned long detail_size) {
#ifdef DS_WITH_CUDA
  if (ds::names_cuda(device)) return ds::fused_lion_cuda::self_test(device, detail, detail_size);
#endif
  return ds::cpu_self_test(device, detail, detail_size, "19 type combinations", ds::self_test);
}

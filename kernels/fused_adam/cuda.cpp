// The op on a GPU: checks, work lists, launches; its kernels are in fused_adam.cu.

#include "fused_adam.h"

#include "cuda_optimizer_host.cuh"
#include "factors.h"
#include "launch.h"
#include "plan.h"
#include "self_test_cases.h"

namespace ds {
namespace {

struct OnGpu {
  using Tensor = FusedAdamTensor;
  using Options = FusedAdamOptions;
  using Factors = FusedAdamFactors;
  static constexpr const OptimizerNames& kNames = fused_adam::kNames;
  static constexpr auto check_options = fused_adam::check_options;
  static constexpr auto prepare = fused_adam_cuda::prepare;
  static constexpr auto launch = fused_adam_cuda::launch;
  static WorkTensor work_of(const Tensor& t) {
    return {t.param,      t.grad,        {t.exp_avg, t.exp_avg_sq},
            t.copy,       t.size,        t.param_dtype,
            t.grad_dtype, t.state_dtype, t.copy_dtype};
  }
};

// More than a chunk and an odd rest.
void self_test(int device, Comparison& comparison) {
  fused_adam::test_all_types(
      comparison, 2 * kChunk + 331, [&](OptimizerCase& c, const auto&... options) {
        const OptimizerCaseOnDevice at(c);
        const FusedAdamTensor tensor = fused_adam::tensor_of(c, at);
        fused_adam_step(&tensor, 1, options..., {}, CudaOptions{device, nullptr});
        at.download_to(c);
      });
}

}  // namespace

void fused_adam_step(const FusedAdamTensor* tensors, std::size_t count,
                     const FusedAdamOptions& options, const GradientOptions& gradients,
                     const OptimizerScalars& scalars, const CudaOptions& cuda) {
  cuda_optimizer_step<OnGpu>(tensors, count, options, gradients, scalars, cuda);
}

int fused_adam_cuda::self_test(const char* device, char* detail, unsigned long detail_size) {
  return cuda_self_test(device, detail, detail_size, "19 type combinations", ds::self_test);
}

}  // namespace ds

// The op on a GPU: checks, work lists, launches; its kernels are in fused_adam.cu.

#include "fused_adam.h"

#include <vector>

#include "cuda_optimizer_host.cuh"
#include "factors.h"
#include "launch.h"
#include "plan.h"
#include "self_test_cases.h"

namespace ds {
namespace {

OptimizerCache& cache() {
  // Never destroyed: at the end of a process the driver may be gone before its user.
  static auto* const kept = new OptimizerCache;
  return *kept;
}

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
  fused_adam::check_options(options);
  check_gradients(fused_adam::kNames.function, gradients, scalars);
  std::vector<WorkTensor> list;
  list.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const FusedAdamTensor& t = tensors[i];
    list.push_back({t.param,
                    t.grad,
                    {t.exp_avg, t.exp_avg_sq},
                    t.copy,
                    t.size,
                    t.param_dtype,
                    t.grad_dtype,
                    t.state_dtype,
                    t.copy_dtype});
  }
  FusedAdamFactors given = factors_of(options);
  given.grad_multiplier = static_cast<float>(1.0 / gradients.scale);
  run_cuda_optimizer(
      cache(), std::move(list), fused_adam::kNames, scalars, sizeof(FusedAdamFactors), cuda,
      [&](void* factors, cudaStream_t stream) {
        fused_adam_cuda::prepare(options, gradients, scalars,
                                 static_cast<FusedAdamFactors*>(factors), stream);
      },
      [&](const WorkGroup& group, const WorkRow* rows, const std::uint32_t* items, void* factors,
          cudaStream_t stream) {
        fused_adam_cuda::launch(group, rows, items, given,
                                static_cast<const FusedAdamFactors*>(factors), stream);
      });
}

int fused_adam_cuda::self_test(const char* device, char* detail, unsigned long detail_size) {
  return cuda_self_test(device, detail, detail_size, "19 type combinations", ds::self_test);
}

}  // namespace ds

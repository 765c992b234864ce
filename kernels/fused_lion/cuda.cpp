// The op on a GPU: checks, work lists, launches; its kernels are in fused_lion.cu.

#include "fused_lion.h"

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
  fused_lion::test_all_types(
      comparison, 2 * kChunk + 331, [&](OptimizerCase& c, const auto&... options) {
        const OptimizerCaseOnDevice at(c);
        const FusedLionTensor tensor = fused_lion::tensor_of(c, at);
        fused_lion_step(&tensor, 1, options..., {}, CudaOptions{device, nullptr});
        at.download_to(c);
      });
}

}  // namespace

void fused_lion_step(const FusedLionTensor* tensors, std::size_t count,
                     const FusedLionOptions& options, const GradientOptions& gradients,
                     const OptimizerScalars& scalars, const CudaOptions& cuda) {
  fused_lion::check_options(options);
  check_gradients(fused_lion::kNames.function, gradients, scalars);
  std::vector<WorkTensor> list;
  list.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const FusedLionTensor& t = tensors[i];
    list.push_back({t.param,
                    t.grad,
                    {t.exp_avg, nullptr},
                    t.copy,
                    t.size,
                    t.param_dtype,
                    t.grad_dtype,
                    t.state_dtype,
                    t.copy_dtype});
  }
  FusedLionFactors given = factors_of(options);
  given.grad_multiplier = static_cast<float>(1.0 / gradients.scale);
  run_cuda_optimizer(
      cache(), std::move(list), fused_lion::kNames, scalars, sizeof(FusedLionFactors), cuda,
      [&](void* factors, cudaStream_t stream) {
        fused_lion_cuda::prepare(options, gradients, scalars,
                                 static_cast<FusedLionFactors*>(factors), stream);
      },
      [&](const WorkGroup& group, const WorkRow* rows, const std::uint32_t* items, void* factors,
          cudaStream_t stream) {
        fused_lion_cuda::launch(group, rows, items, given,
                                static_cast<const FusedLionFactors*>(factors), stream);
      });
}

int fused_lion_cuda::self_test(const char* device, char* detail, unsigned long detail_size) {
  return cuda_self_test(device, detail, detail_size, "19 type combinations", ds::self_test);
}

}  // namespace ds

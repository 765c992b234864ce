// fused_lion on the CPU, element by element against its reference. What torch adds is tested in
// tests/fused_optimizers_test.py, what a GPU computes in fused_lion_on_gpu.cc.

#include "fused_lion.h"

#include "fused_optimizer_suite.h"
#include "self_test_cases.h"

namespace ds {
namespace {

struct FusedLionOnCpu {
  using Options = FusedLionOptions;
  using Tensor = FusedLionTensor;
  static Tensor tensor_of(const OptimizerCase& c, OptimizerCase& at) {
    return fused_lion::tensor_of(c, at);
  }
  static void check_step(Comparison& comparison, const OptimizerCase& old, const OptimizerCase& now,
                         const Options& options, double scale) {
    fused_lion::check_step(comparison, old, now, options, scale);
  }
  static void step(const Tensor* tensors, std::size_t count, const Options& options,
                   const GradientOptions& gradients, const OptimizerScalars& scalars,
                   float* /*ratios*/, const CpuOptions& cpu) {
    fused_lion_step(tensors, count, options, gradients, scalars, cpu);
  }
  static int self_test(const char* device, char* detail, unsigned long size) {
    return ds_self_test_fused_lion(device, detail, size);
  }
};

INSTANTIATE_TYPED_TEST_SUITE_P(Lion, FusedOptimizer, FusedLionOnCpu);

}  // namespace
}  // namespace ds

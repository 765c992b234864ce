// fused_adam on the CPU, element by element against its reference. What torch adds is tested in
// tests/fused_optimizers_test.py, what a GPU computes in fused_adam_on_gpu.cc.

#include "fused_adam.h"

#include "fused_optimizer_suite.h"
#include "self_test_cases.h"

namespace ds {
namespace {

struct FusedAdamOnCpu {
  using Options = FusedAdamOptions;
  using Tensor = FusedAdamTensor;
  static Tensor tensor_of(const OptimizerCase& c, OptimizerCase& at) {
    return fused_adam::tensor_of(c, at);
  }
  static void check_step(Comparison& comparison, const OptimizerCase& old, const OptimizerCase& now,
                         const Options& options, double scale) {
    fused_adam::check_step(comparison, old, now, options, scale);
  }
  static void step(const Tensor* tensors, std::size_t count, const Options& options,
                   const GradientOptions& gradients, const OptimizerScalars& scalars,
                   float* /*ratios*/, const CpuOptions& cpu) {
    fused_adam_step(tensors, count, options, gradients, scalars, cpu);
  }
  static int self_test(const char* device, char* detail, unsigned long size) {
    return ds_self_test_fused_adam(device, detail, size);
  }
};

INSTANTIATE_TYPED_TEST_SUITE_P(Adam, FusedOptimizer, FusedAdamOnCpu);

}  // namespace
}  // namespace ds

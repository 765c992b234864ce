// fused_lamb on the CPU, element by element against its reference. What torch adds is tested in
// tests/fused_optimizers_test.py, what a GPU computes in fused_lamb_on_gpu.cc.

#include "fused_lamb.h"

#include "fused_optimizer_suite.h"
#include "self_test_cases.h"

namespace ds {
namespace {

struct FusedLambOnCpu {
  using Options = FusedLambOptions;
  using Tensor = FusedLambTensor;
  static Tensor tensor_of(const OptimizerCase& c, OptimizerCase& at) {
    return fused_lamb::tensor_of(c, at);
  }
  static void check_step(Comparison& comparison, const OptimizerCase& old, const OptimizerCase& now,
                         const Options& options, double scale) {
    fused_lamb::check_step(comparison, old, now, options, scale);
  }
  static void step(const Tensor* tensors, std::size_t count, const Options& options,
                   const GradientOptions& gradients, const OptimizerScalars& scalars, float* ratios,
                   const CpuOptions& cpu) {
    fused_lamb_step(tensors, count, options, gradients, scalars, ratios, cpu);
  }
  static int self_test(const char* device, char* detail, unsigned long size) {
    return ds_self_test_fused_lamb(device, detail, size);
  }
};

INSTANTIATE_TYPED_TEST_SUITE_P(Lamb, FusedOptimizer, FusedLambOnCpu);

}  // namespace
}  // namespace ds

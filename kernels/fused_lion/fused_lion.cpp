#include "fused_lion.h"

#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda_optimizer_host.cuh"
#include "factors.h"
#include "launch.h"
#include "reference.h"

namespace ds {
namespace {

constexpr OptimizerNames kNames{"ds::fused_lion_step", {"exp_avgs", nullptr}};

void check_options(const FusedLionOptions& o) {
  const auto refuse = [&](const char* what, double value) {
    throw std::invalid_argument(std::string(kNames.function) + ": " + what + " (it is " +
                                std::to_string(value) + ")");
  };
  if (!(o.beta1 >= 0.0 && o.beta1 < 1.0)) refuse("beta1 must be in [0, 1)", o.beta1);
  if (!(o.beta2 >= 0.0 && o.beta2 < 1.0)) refuse("beta2 must be in [0, 1)", o.beta2);
  if (!std::isfinite(o.lr)) refuse("lr must be finite", o.lr);
  if (!std::isfinite(o.weight_decay)) refuse("weight_decay must be finite", o.weight_decay);
}

OptimizerCache& cache() {
  // Never destroyed: at the end of a process the driver may be gone before its user.
  static auto* const kept = new OptimizerCache;
  return *kept;
}

// Sizes around a chunk and an odd offset, all types, with a copy and a scale.
void self_test(int device, Comparison& comparison) {
  constexpr std::int64_t kSize = 2 * kChunk + 331;
  for (const OptimizerTypes& types : all_optimizer_types()) {
    FusedLionOptions options;
    options.lr = 0.01;
    options.weight_decay = 0.1;
    const GradientOptions gradients{4.0, 0.0};
    Buffer p(types.param, kSize), g(types.grad, kSize), m(types.state, kSize),
        copy(DType::bf16, kSize);
    Random random(7);
    for (std::int64_t i = 0; i < kSize; ++i) {
      p.set(i, random.next());
      g.set(i, i % 11 == 0 ? 0.0 : 4.0 * random.next());
      m.set(i, 0.1 * random.next());
    }
    DeviceBuffer dp(p), dg(g), dm(m), dc(copy);
    const FusedLionTensor tensor{dp.data(),   dg.data(),  dm.data(),   dc.data(),  kSize,
                                 types.param, types.grad, types.state, DType::bf16};
    fused_lion_step(&tensor, 1, options, gradients, {}, {device, nullptr});
    const Buffer new_p = dp.download(types.param, kSize), new_m = dm.download(types.state, kSize),
                 new_copy = dc.download(DType::bf16, kSize);
    for (std::int64_t i = 0; i < kSize; ++i) {
      const FusedLionExpected want =
          fused_lion_reference(p.get(i), g.get(i), m.get(i), options, 0.25);
      if (!want.sign_is_open) {
        comparison.check("param", i, new_p, want.param);
        comparison.check("copy", i, new_copy, want.param);
      }
      comparison.check("exp_avg", i, new_m, want.exp_avg);
    }
    if (!new_p.guard_is_intact() || !new_m.guard_is_intact() || !new_copy.guard_is_intact()) {
      comparison.fail("wrote behind the last element");
    }
  }
}

}  // namespace

void fused_lion_step(const FusedLionTensor* tensors, std::size_t count,
                     const FusedLionOptions& options, const GradientOptions& gradients,
                     const OptimizerScalars& scalars, const CudaOptions& cuda) {
  check_options(options);
  check_gradients(kNames.function, gradients, scalars);
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
      cache(), std::move(list), kNames, scalars, sizeof(FusedLionFactors), cuda,
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

}  // namespace ds

int ds_self_test_fused_lion(const char* device, char* detail, unsigned long detail_size) {
  return ds::cuda_self_test(device, detail, detail_size, "15 type combinations", ds::self_test);
}

#include "fused_lamb.h"

#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda_optimizer_host.cuh"
#include "factors.h"
#include "lamb_list.h"
#include "launch.h"
#include "reference.h"

namespace ds {
namespace {

constexpr OptimizerNames kNames{"ds::fused_lamb_step", {"exp_avgs", "exp_avg_sqs"}};

void check_options(const FusedLambOptions& o) {
  const auto refuse = [&](const char* what, double value) {
    throw std::invalid_argument(std::string(kNames.function) + ": " + what + " (it is " +
                                std::to_string(value) + ")");
  };
  if (o.step < 1) refuse("step counts from 1", static_cast<double>(o.step));
  if (!(o.beta1 >= 0.0 && o.beta1 < 1.0)) refuse("beta1 must be in [0, 1)", o.beta1);
  if (!(o.beta2 >= 0.0 && o.beta2 < 1.0)) refuse("beta2 must be in [0, 1)", o.beta2);
  if (!(o.eps >= 0.0)) refuse("eps must not be negative", o.eps);
  if (!std::isfinite(o.lr)) refuse("lr must be finite", o.lr);
  if (!std::isfinite(o.weight_decay)) refuse("weight_decay must be finite", o.weight_decay);
  if (!(o.min_ratio >= 0.0)) refuse("min_ratio must not be negative", o.min_ratio);
  if (!(o.max_ratio >= o.min_ratio)) refuse("max_ratio must not be below min_ratio", o.max_ratio);
}

// A list on the device, and the memory in which one launch at a time counts and sums.
struct LambWork {
  std::vector<LambGroup> groups;
  DeviceMemory rows, items, partials, factors;
  DeviceMemory counters;  // Of a group: a ratio a row, a count a row, and the ticket.
  std::size_t counters_size = 0;
  std::vector<fused_lamb_cuda::Scratch> scratch;  // Of each group.
};

std::unique_ptr<LambWork> make_work(const WorkKey& key) {
  check_work(key.tensors, kNames);
  const LambList list = make_lamb_list(key.tensors, kNames.function);
  auto work = std::make_unique<LambWork>();
  work->groups = list.groups;
  work->rows = upload(list.rows.data(), list.rows.size() * sizeof(LambRow));
  work->items = upload(list.items.data(), list.items.size() * sizeof(LambItem));
  work->factors = DeviceMemory(sizeof(FusedLambFactors));
  std::size_t partials = 0, rows = 0;
  for (const LambGroup& group : list.groups) {
    partials += group.partials;
    rows += group.rows;
  }
  using fused_lamb_cuda::NormSquares;
  work->partials = DeviceMemory(partials * sizeof(NormSquares));
  constexpr std::size_t kRow = sizeof(unsigned long long) + sizeof(std::uint32_t);
  work->counters_size = rows * kRow + list.groups.size() * sizeof(std::uint32_t);
  work->counters = DeviceMemory(work->counters_size);
  auto* ratios = static_cast<unsigned long long*>(work->counters.data());
  auto* counts = reinterpret_cast<std::uint32_t*>(ratios + rows);
  auto* next_partials = static_cast<NormSquares*>(work->partials.data());
  for (const LambGroup& group : list.groups) {
    work->scratch.push_back({counts, counts + 1, ratios, next_partials});
    counts += group.rows + 1;
    ratios += group.rows;
    next_partials += group.partials;
  }
  return work;
}

using LambCache = WorkCache<WorkKey, LambWork>;

LambCache& cache() {
  // Never destroyed: at the end of a process the driver may be gone before its user.
  static auto* const kept = new LambCache;
  return *kept;
}

// One tensor of a chunk and one of several, all types, with a copy and a scale.
void self_test(int device, Comparison& comparison) {
  for (const OptimizerTypes& types : all_optimizer_types()) {
    for (const std::int64_t size : {kChunk - 5, 2 * kChunk + 331}) {
      FusedLambOptions options;
      options.step = 3;
      options.lr = 0.01;
      options.weight_decay = 0.1;
      const GradientOptions gradients{4.0, 0.0};
      Buffer p(types.param, size), g(types.grad, size), m(types.state, size), v(types.state, size),
          copy(DType::bf16, size), ratio(DType::f32, 1);
      Random random(7);
      for (std::int64_t i = 0; i < size; ++i) {
        p.set(i, random.next());
        g.set(i, i % 11 == 0 ? 0.0 : 4.0 * random.next());
        m.set(i, 0.1 * random.next());
        v.set(i, std::fabs(0.01 * random.next()));
      }
      const DeviceBuffer dp(p), dg(g), dm(m), dv(v), dc(copy), dr(ratio);
      const FusedLambTensor tensor{dp.data(), dg.data(),   dm.data(),  dv.data(),   dc.data(),
                                   size,      types.param, types.grad, types.state, DType::bf16};
      fused_lamb_step(&tensor, 1, options, gradients, {}, static_cast<float*>(dr.data()),
                      {device, nullptr});
      const Buffer new_p = dp.download(types.param, size), new_m = dm.download(types.state, size),
                   new_v = dv.download(types.state, size),
                   new_copy = dc.download(DType::bf16, size),
                   new_ratio = dr.download(DType::f32, 1);
      const FusedLambExpected want = fused_lamb_reference(p, g, m, v, size, options, 0.25);
      comparison.check("trust_ratio", 0, new_ratio, {want.trust_ratio, want.trust_ratio});
      for (std::int64_t i = 0; i < size; ++i) {
        const auto at = static_cast<std::size_t>(i);
        comparison.check("exp_avg", i, new_m, want.exp_avg[at]);
        comparison.check("exp_avg_sq", i, new_v, want.exp_avg_sq[at]);
        // A state may be rounded to the neighbour: an ulp of it is one of u.
        const double extra = lamb_param_slack(types.param, types.state, want.param[at]);
        comparison.check("param", i, new_p, want.param[at], extra);
        comparison.check("copy", i, new_copy, want.param[at],
                         lamb_param_slack(DType::bf16, types.state, want.param[at]));
      }
      if (!new_p.guard_is_intact() || !new_m.guard_is_intact() || !new_v.guard_is_intact() ||
          !new_copy.guard_is_intact()) {
        comparison.fail("wrote behind the last element");
      }
    }
  }
}

}  // namespace

void fused_lamb_step(const FusedLambTensor* tensors, std::size_t count,
                     const FusedLambOptions& options, const GradientOptions& gradients,
                     const OptimizerScalars& scalars, float* trust_ratios,
                     const CudaOptions& cuda) {
  check_options(options);
  check_gradients(kNames.function, gradients, scalars);
  WorkKey key;
  key.tensors.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const FusedLambTensor& t = tensors[i];
    key.tensors.push_back({t.param,
                           t.grad,
                           {t.exp_avg, t.exp_avg_sq},
                           t.copy,
                           t.size,
                           t.param_dtype,
                           t.grad_dtype,
                           t.state_dtype,
                           t.copy_dtype});
  }
  FusedLambFactors given = factors_of(options);
  given.grad_multiplier = static_cast<float>(1.0 / gradients.scale);
  int device = cuda.device;
  if (device < 0) check_cuda(cudaGetDevice(&device), "while asking for the current CUDA device");
  const DeviceGuard guard(device);
  const auto stream = static_cast<cudaStream_t>(cuda.stream);
  cache().run(
      device, stream, std::move(key),
      [&](const WorkKey& made_for, const LambWork*) { return make_work(made_for); },
      [&](const LambWork& work) {
        auto* const factors =
            any(scalars) ? static_cast<FusedLambFactors*>(work.factors.data()) : nullptr;
        if (factors != nullptr) {
          fused_lamb_cuda::prepare(options, gradients, scalars, factors, stream);
          check_cuda(cudaGetLastError(), kNames.function);
        }
        if (work.groups.empty()) return;
        check_cuda(cudaMemsetAsync(work.counters.data(), 0, work.counters_size, stream),
                   kNames.function);
        for (std::size_t g = 0; g < work.groups.size(); ++g) {
          fused_lamb_cuda::launch(work.groups[g], static_cast<const LambRow*>(work.rows.data()),
                                  static_cast<const LambItem*>(work.items.data()), work.scratch[g],
                                  given, factors, trust_ratios, multiprocessors(device), stream);
          check_cuda(cudaGetLastError(), kNames.function);
        }
      });
}

}  // namespace ds

int ds_self_test_fused_lamb(const char* device, char* detail, unsigned long detail_size) {
  return ds::cuda_self_test(device, detail, detail_size, "15 type combinations", ds::self_test);
}

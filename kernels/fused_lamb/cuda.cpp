// The op on a GPU: checks, work lists, launches; its kernels are in fused_lamb.cu.

#include "fused_lamb.h"

#include <vector>

#include "cuda_optimizer_host.cuh"
#include "factors.h"
#include "lamb_list.h"
#include "launch.h"
#include "plan.h"
#include "self_test_cases.h"

namespace ds {
namespace {

// A list on the device, and the memory in which one launch at a time counts and sums.
struct LambWork {
  std::vector<LambGroup> groups;
  DeviceMemory rows, items, partials, factors;
  DeviceMemory counters;  // Of a group: a ratio a row, a count a row, and the ticket.
  std::size_t counters_size = 0;
  std::vector<fused_lamb_cuda::Scratch> scratch;  // Of each group.
};

std::unique_ptr<LambWork> make_work(const WorkKey& key) {
  check_work(key.tensors, fused_lamb::kNames);
  const LambList list = make_lamb_list(key.tensors, fused_lamb::kNames.function);
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

// One tensor of a chunk and one of several.
void self_test(int device, Comparison& comparison) {
  for (const std::int64_t size : {kChunk - 5, 2 * kChunk + 331}) {
    fused_lamb::test_all_types(comparison, size, [&](OptimizerCase& c, const auto&... options) {
      const OptimizerCaseOnDevice at(c);
      const FusedLambTensor tensor = fused_lamb::tensor_of(c, at);
      fused_lamb_step(&tensor, 1, options..., {}, static_cast<float*>(at.ratio.data()),
                      CudaOptions{device, nullptr});
      at.download_to(c);
    });
  }
}

}  // namespace

void fused_lamb_step(const FusedLambTensor* tensors, std::size_t count,
                     const FusedLambOptions& options, const GradientOptions& gradients,
                     const OptimizerScalars& scalars, float* trust_ratios,
                     const CudaOptions& cuda) {
  fused_lamb::check_options(options);
  check_gradients(fused_lamb::kNames.function, gradients, scalars);
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
          check_cuda(cudaGetLastError(), fused_lamb::kNames.function);
        }
        if (work.groups.empty()) return;
        check_cuda(cudaMemsetAsync(work.counters.data(), 0, work.counters_size, stream),
                   fused_lamb::kNames.function);
        for (std::size_t g = 0; g < work.groups.size(); ++g) {
          fused_lamb_cuda::launch(work.groups[g], static_cast<const LambRow*>(work.rows.data()),
                                  static_cast<const LambItem*>(work.items.data()), work.scratch[g],
                                  given, factors, trust_ratios, multiprocessors(device), stream);
          check_cuda(cudaGetLastError(), fused_lamb::kNames.function);
        }
      });
}

int fused_lamb_cuda::self_test(const char* device, char* detail, unsigned long detail_size) {
  return cuda_self_test(device, detail, detail_size, "19 type combinations", ds::self_test);
}

}  // namespace ds

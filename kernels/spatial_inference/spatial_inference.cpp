// The op on the CPU, and the self-test of both devices.

#include "spatial_inference.h"

#include <string_view>
#include <vector>

#include "cpu_isa.h"
#include "cpu_parallel.h"
#include "half.h"
#include "plan.h"
#include "self_test_cases.h"
#ifdef DS_WITH_CUDA
#include "launch.h"
#endif

namespace ds {
namespace {

// Elements first to last of the images; the biases are repeated to `period` elements, a multiple of
// the channels, and a run begins at any of them.
struct SpatialRun {
  const void* x;
  const void* other;
  void* out;
  const float* bias;
  const float* other_bias;
  std::int64_t period;
  std::int64_t first, last;
};
using SpatialKernel = void (*)(const SpatialRun& run);

}  // namespace
}  // namespace ds

#define DS_KERNEL_FILE "kernel.h"
#include "for_each_isa.h"

namespace ds {
namespace {

SpatialKernel pick(CpuIsa isa, DType dtype, int terms) {
  return DS_ON_PATH(isa, kernel_for(dtype, terms));
}

// As floats, one behind the other until there are `period`.
std::vector<float> repeated(const void* bias, DType dtype, std::int64_t channels,
                            std::int64_t period) {
  std::vector<float> floats(bias == nullptr ? 0 : static_cast<std::size_t>(period));
  for (std::size_t i = 0; i < floats.size(); ++i) {
    const std::size_t channel = i % static_cast<std::size_t>(channels);
    if (dtype == DType::f32) floats[i] = static_cast<const float*>(bias)[channel];
    if (dtype == DType::f16) floats[i] = to_float(static_cast<const f16*>(bias)[channel]);
    if (dtype == DType::bf16) floats[i] = to_float(static_cast<const bf16*>(bias)[channel]);
  }
  return floats;
}

void self_test(CpuIsa isa, Comparison& comparison) {
  spatial_inference::test_all_sums(comparison, [&](spatial_inference::Case& c) {
    spatial_inference_add(
        c.sum(c.x.data(), c.bias.data(), c.other.data(), c.other_bias.data(), c.out.data()),
        CpuOptions{1, isa});
  });
}

}  // namespace

void spatial_inference_add(const SpatialInferenceSum& sum, const CpuOptions& cpu) {
  if (!spatial_inference::check(sum)) return;
  // Few channels are repeated so that vectors of any width end with them.
  constexpr std::int64_t kRepeat = 16, kFew = 256;
  const std::int64_t period = sum.channels < kFew ? sum.channels * kRepeat : sum.channels;
  const std::vector<float> bias = repeated(sum.bias, sum.dtype, sum.channels, period),
                           other_bias = repeated(sum.other_bias, sum.dtype, sum.channels, period);
  const int terms = sum.other == nullptr ? 1 : sum.other_bias == nullptr ? 2 : 3;
  const SpatialKernel kernel = pick(resolve_isa(cpu.isa), sum.dtype, terms);
  const SpatialRun run{sum.x, sum.other, sum.out, bias.data(), other_bias.data(), period, 0, 0};
  constexpr std::int64_t kUnit = 1024;  // Elements: no two threads write one cache line.
  for_each_share(sum.pixels * sum.channels, kUnit, terms > 1 ? 12 : 8, cpu,
                 [&](std::int64_t first, std::int64_t last) {
                   SpatialRun share = run;
                   share.first = first;
                   share.last = last;
                   kernel(share);
                 });
}

}  // namespace ds

int ds_self_test_spatial_inference(const char* device, char* detail, unsigned long detail_size) {
#ifdef DS_WITH_CUDA
  if (ds::names_cuda(device)) {
    return ds::spatial_inference_cuda::self_test(device, detail, detail_size);
  }
#endif
  return ds::cpu_self_test(device, detail, detail_size, "18 cases", ds::self_test);
}

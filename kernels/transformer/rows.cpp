// Rows of a layer on the CPU.

#include <algorithm>
#include <vector>

#include "checks.h"
#include "cpu_isa.h"
#include "cpu_parallel.h"
#include "dropout.h"
#include "half.h"
#include "transformer.h"

namespace ds {
namespace {

struct RowKernels {
  void (*add)(const DropoutAdd&, const DropoutPlan&, std::int64_t first, std::int64_t last);
  void (*drop)(const DropoutBackward&, const DropoutPlan&, std::int64_t first, std::int64_t last);
  void (*norm)(const LayerNorm&, std::int64_t first, std::int64_t last);
  void (*norm_backward)(const LayerNormBackward&, std::int64_t first, std::int64_t last,
                        float* sums, float* scratch);
  void (*gelu)(const BiasGelu&, std::int64_t first, std::int64_t last);
};

}  // namespace
}  // namespace ds

#define DS_KERNEL_FILE "rows_kernel.h"
#include "for_each_isa.h"

namespace ds {
namespace {

using transformer::check_dropout;
using transformer::check_pointers;
using transformer::check_sizes;
using transformer::refuse;

const RowKernels& pick(const CpuOptions& cpu, DType dtype) {
  const CpuIsa isa = resolve_isa(cpu.isa);
  return DS_ON_PATH(isa, row_kernels(dtype));
}

void store(const std::vector<double>& from, DType dtype, void* to) {
  for (std::size_t i = 0; i < from.size(); ++i) {
    const auto x = static_cast<float>(from[i]);
    if (dtype == DType::f32) static_cast<float*>(to)[i] = x;
    if (dtype == DType::f16) from_float(x, static_cast<f16*>(to)[i]);
    if (dtype == DType::bf16) from_float(x, static_cast<bf16*>(to)[i]);
  }
}

}  // namespace

void dropout_add(const DropoutAdd& call, const CpuOptions& cpu) {
  constexpr const char* kName = "dropout_add";
  check_dropout(kName, call.dropout);
  if (!check_sizes(kName, call.dtype, {call.rows, call.columns})) return;
  check_pointers(kName, {call.x, call.bias, call.residual, call.out});
  const DropoutPlan dropout = plan_dropout(call.dropout.ratio, call.dropout.source);
  const auto kernel = pick(cpu, call.dtype).add;
  for_each_share(call.rows, 1, 16 * call.columns, cpu, [&](std::int64_t first, std::int64_t last) {
    kernel(call, dropout, first, last);
  });
}

void dropout_backward(const DropoutBackward& call, const CpuOptions& cpu) {
  constexpr const char* kName = "dropout_backward";
  check_dropout(kName, call.dropout);
  if (!check_sizes(kName, call.dtype, {call.size})) return;
  check_pointers(kName, {call.grad_out, call.grad_x});
  const DropoutPlan dropout = plan_dropout(call.dropout.ratio, call.dropout.source);
  const auto kernel = pick(cpu, call.dtype).drop;
  for_each_share(call.size, 1024, 16, cpu, [&](std::int64_t first, std::int64_t last) {
    kernel(call, dropout, first, last);
  });
}

void layer_norm(const LayerNorm& call, const CpuOptions& cpu) {
  constexpr const char* kName = "layer_norm";
  if (!(call.epsilon >= 0.0)) refuse(kName, "epsilon is negative");
  if (!check_sizes(kName, call.dtype, {call.rows, call.columns})) return;
  check_pointers(kName, {call.x, call.gamma, call.beta, call.out, call.factors});
  const auto kernel = pick(cpu, call.dtype).norm;
  for_each_share(call.rows, 1, 16 * call.columns, cpu,
                 [&](std::int64_t first, std::int64_t last) { kernel(call, first, last); });
}

// The sums over rows are made of those of at most 64 runs of rows, whatever the threads.
void layer_norm_backward(const LayerNormBackward& call, const CpuOptions& cpu) {
  constexpr const char* kName = "layer_norm_backward";
  constexpr std::int64_t kRuns = 64;
  if ((call.x == nullptr) == (call.out == nullptr) && call.rows > 0 && call.columns > 0) {
    refuse(kName, "either x or out is given");
  }
  check_sizes(kName, call.dtype, {call.rows, call.columns});
  if (call.columns == 0) return;
  check_pointers(kName, {call.gamma, call.grad_gamma, call.grad_beta});
  if (call.out != nullptr) check_pointers(kName, {call.beta});
  if (call.rows > 0) check_pointers(kName, {call.factors, call.grad_out, call.grad_x});
  const auto kernel = pick(cpu, call.dtype).norm_backward;
  const std::int64_t width = (call.columns + 15) / 16 * 16;
  const std::int64_t rows_of_run = (call.rows + kRuns - 1) / kRuns;
  const std::int64_t runs = call.rows == 0 ? 0 : (call.rows + rows_of_run - 1) / rows_of_run;
  std::vector<float> sums(static_cast<std::size_t>(runs * 2 * width));
  std::vector<float> scratch(static_cast<std::size_t>(threads_of(cpu) * 2 * width));
  for_each_share_of_thread(
      runs, 1, 32 * rows_of_run * call.columns + 1, cpu,
      [&](int thread, std::int64_t first, std::int64_t last) {
        for (std::int64_t run = first; run < last; ++run) {
          kernel(call, run * rows_of_run, std::min(call.rows, (run + 1) * rows_of_run),
                 sums.data() + run * 2 * width, scratch.data() + thread * 2 * width);
        }
      });
  std::vector<double> gamma(static_cast<std::size_t>(call.columns)), beta = gamma;
  for (std::int64_t run = 0; run < runs; ++run) {
    const float* of_run = sums.data() + run * 2 * width;
    for (std::size_t c = 0; c < gamma.size(); ++c) {
      gamma[c] += static_cast<double>(of_run[c]);
      beta[c] += static_cast<double>(of_run[static_cast<std::size_t>(width) + c]);
    }
  }
  store(gamma, call.dtype, call.grad_gamma);
  store(beta, call.dtype, call.grad_beta);
}

void bias_gelu(const BiasGelu& call, const CpuOptions& cpu) {
  constexpr const char* kName = "bias_gelu";
  if (!check_sizes(kName, call.dtype, {call.rows, call.columns})) return;
  check_pointers(kName, {call.x, call.bias, call.out});
  const auto kernel = pick(cpu, call.dtype).gelu;
  for_each_share(call.rows, 1, 16 * call.columns, cpu,
                 [&](std::int64_t first, std::int64_t last) { kernel(call, first, last); });
}

}  // namespace ds

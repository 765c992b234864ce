// Rows of elements on the CPU.

#include <vector>

#include "checks.h"
#include "cpu_isa.h"
#include "cpu_parallel.h"
#include "half.h"
#include "transformer_inference.h"

namespace ds {
namespace {

// Each computes the rows [first, last).
struct RowKernels {
  void (*norm)(const NormRows&, std::int64_t first, std::int64_t last, float* scratch);
  void (*activation)(const ActivationRows&, std::int64_t first, std::int64_t last);
  void (*residual)(const ResidualRows&, std::int64_t first, std::int64_t last);
  void (*moe)(const MoeRows&, std::int64_t first, std::int64_t last);
  void (*dequantize)(const DequantizeRows&, std::int64_t first, std::int64_t last);
};

}  // namespace
}  // namespace ds

#define DS_KERNEL_FILE "rows_kernel.h"
#include "for_each_isa.h"

namespace ds {
namespace {

using transformer_inference::check_pointers;
using transformer_inference::check_sizes;
using transformer_inference::refuse;

const RowKernels& pick(const CpuOptions& cpu, DType dtype) {
  const CpuIsa isa = resolve_isa(cpu.isa);
  return DS_ON_PATH(isa, row_kernels(dtype));
}

template <class Call>
void for_rows(const Call& call, void (*kernel)(const Call&, std::int64_t, std::int64_t),
              const CpuOptions& cpu) {
  for_each_share(call.rows, 1, 16 * call.columns, cpu,
                 [&](std::int64_t first, std::int64_t last) { kernel(call, first, last); });
}

}  // namespace

void norm_rows(const NormRows& call, const CpuOptions& cpu) {
  constexpr const char* kName = "norm_rows";
  if (!check_sizes(kName, {call.rows, call.columns})) return;
  check_pointers(kName, call.dtype,
                 {{"x", call.x, false},
                  {"residual", call.residual, true},
                  {"bias", call.bias, true},
                  {"gamma", call.gamma, false},
                  {"beta", call.beta, true},
                  {"out", call.out, false},
                  {"sum", call.sum, true}});
  if (!(call.epsilon >= 0.0)) refuse(kName, "epsilon is negative");
  if (call.sum == call.out) refuse(kName, "sum and out are one");
  const auto kernel = pick(cpu, call.dtype).norm;
  const std::int64_t row = (call.columns + 15) / 16 * 16;
  std::vector<float> scratch(static_cast<std::size_t>(row * threads_of(cpu)));
  for_each_share_of_thread(call.rows, 1, 16 * call.columns, cpu,
                           [&](int thread, std::int64_t first, std::int64_t last) {
                             kernel(call, first, last, scratch.data() + thread * row);
                           });
}

void activation_rows(const ActivationRows& call, const CpuOptions& cpu) {
  constexpr const char* kName = "activation_rows";
  if (call.activation > Activation::silu) refuse(kName, "unknown activation");
  if (!check_sizes(kName, {call.rows, call.columns})) return;
  check_pointers(kName, call.dtype,
                 {{"x", call.x, false}, {"bias", call.bias, true}, {"out", call.out, false}});
  if (call.gated && call.x == call.out) refuse(kName, "x and out are one, and gated");
  for_rows(call, pick(cpu, call.dtype).activation, cpu);
}

void residual_rows(const ResidualRows& call, const CpuOptions& cpu) {
  constexpr const char* kName = "residual_rows";
  if (!check_sizes(kName, {call.rows, call.columns})) return;
  check_pointers(kName, call.dtype,
                 {{"residual", call.residual, false},
                  {"hidden", call.hidden, false},
                  {"attention", call.attention, true},
                  {"attention_bias", call.attention_bias, true},
                  {"bias", call.bias, true}});
  for_rows(call, pick(cpu, call.dtype).residual, cpu);
}

void moe_rows(const MoeRows& call, const CpuOptions& cpu) {
  constexpr const char* kName = "moe_rows";
  if (!check_sizes(kName, {call.rows, call.columns})) return;
  check_pointers(kName, call.dtype,
                 {{"out", call.out, false},
                  {"residual", call.residual, false},
                  {"coefficients", call.coefficients, false}});
  for_rows(call, pick(cpu, call.dtype).moe, cpu);
}

void dequantize_rows(const DequantizeRows& call, const CpuOptions& cpu) {
  constexpr const char* kName = "dequantize_rows";
  if (!check_sizes(kName, {call.rows, call.columns})) return;
  if (call.groups < 1 || call.rows % call.groups != 0) {
    refuse(kName, std::to_string(call.rows) + " rows do not fall into " +
                      std::to_string(call.groups) + " equal groups");
  }
  check_pointers(kName, call.dtype, {{"out", call.out, false}});
  check_pointers(kName, DType::f32, {{"scales", call.scales, false}});
  if (call.q == nullptr) refuse(kName, "q is null");
  for_rows(call, pick(cpu, call.dtype).dequantize, cpu);
}

}  // namespace ds

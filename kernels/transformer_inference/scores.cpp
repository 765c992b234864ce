// Softmax of scores and rotary embedding on the CPU.

#include <cmath>
#include <vector>

#include "checks.h"
#include "cpu_isa.h"
#include "cpu_parallel.h"
#include "half.h"
#include "transformer_inference.h"

namespace ds {
namespace {

struct ScoreKernels {
  void (*softmax)(const SoftmaxRows&, std::int64_t first, std::int64_t last, float* scratch);
  void (*rotate)(const Rotary&, const float* turns, std::int64_t first, std::int64_t last,
                 float* scratch);
};

}  // namespace
}  // namespace ds

#define DS_KERNEL_FILE "scores_kernel.h"
#include "for_each_isa.h"

namespace ds {
namespace {

using transformer_inference::check_pointers;
using transformer_inference::check_sizes;
using transformer_inference::check_terms;
using transformer_inference::refuse;

const ScoreKernels& pick(const CpuOptions& cpu, DType dtype) {
  const CpuIsa isa = resolve_isa(cpu.isa);
  return DS_ON_PATH(isa, score_kernels(dtype));
}

// Shares of `units` among threads, each with `floats` of its own, in whole blocks.
template <class Run>
void for_units(std::int64_t units, std::int64_t bytes, std::int64_t floats, const CpuOptions& cpu,
               const Run& run) {
  const std::int64_t own = (floats + 15) / 16 * 16;
  std::vector<float> scratch(static_cast<std::size_t>(own * threads_of(cpu)));
  for_each_share_of_thread(units, 1, bytes, cpu,
                           [&](int thread, std::int64_t first, std::int64_t last) {
                             run(first, last, scratch.data() + thread * own);
                           });
}

}  // namespace

void softmax_rows(const SoftmaxRows& call, const CpuOptions& cpu) {
  constexpr const char* kName = "softmax_rows";
  check_terms(kName, call.terms);
  if (!check_sizes(kName, {call.batch, call.heads, call.queries, call.keys})) return;
  check_pointers(kName, call.dtype,
                 {{"scores", call.scores, false},
                  {"out", call.out, false},
                  {"mask", call.terms.mask, true},
                  {"alibi", call.terms.alibi, true}});
  const auto kernel = pick(cpu, call.dtype).softmax;
  for_units(call.batch * call.heads * call.queries, 16 * call.keys, call.keys, cpu,
            [&](std::int64_t first, std::int64_t last, float* scratch) {
              kernel(call, first, last, scratch);
            });
}

void rotary(const Rotary& call, const CpuOptions& cpu) {
  constexpr const char* kName = "rotary";
  if (call.rotary_dim < 0 || call.rotary_dim % 2 != 0 || call.rotary_dim > call.head_size) {
    refuse(kName, "rotary_dim must be even and at most the head's " +
                      std::to_string(call.head_size) + " elements (it is " +
                      std::to_string(call.rotary_dim) + ")");
  }
  if (!(call.theta > 0.0)) refuse(kName, "theta must be positive");
  if (!check_sizes(kName, {call.batch, call.heads, call.tokens, call.rotary_dim})) return;
  check_pointers(kName, call.dtype, {{"x", call.x, false}});
  const std::int64_t dim = call.rotary_dim, pairs = dim / 2;
  const std::int64_t rows = call.positions == nullptr ? call.tokens : call.batch * call.tokens;
  std::vector<float> turns(static_cast<std::size_t>(rows * dim));
  std::vector<double> speeds(static_cast<std::size_t>(pairs));
  for (std::int64_t p = 0; p < pairs; ++p) {
    speeds[static_cast<std::size_t>(p)] =
        std::pow(call.theta, -2.0 * static_cast<double>(p) / static_cast<double>(dim));
  }
  for_each_share(rows, 1, 64 * dim, cpu, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) {
      const auto position =
          static_cast<double>(call.positions == nullptr ? call.offset + row : call.positions[row]);
      float* to = turns.data() + row * dim;
      for (std::int64_t p = 0; p < pairs; ++p) {
        const double angle = position * speeds[static_cast<std::size_t>(p)];
        to[p] = static_cast<float>(std::cos(angle));
        to[pairs + p] = static_cast<float>(std::sin(angle));
      }
    }
  });
  const auto kernel = pick(cpu, call.dtype).rotate;
  for_units(call.batch * call.heads * call.tokens, 16 * dim, dim, cpu,
            [&](std::int64_t first, std::int64_t last, float* scratch) {
              kernel(call, turns.data(), first, last, scratch);
            });
}

}  // namespace ds

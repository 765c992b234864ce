// Attention of a layer on the CPU.

#include <vector>

#include "checks.h"
#include "cpu_isa.h"
#include "cpu_parallel.h"
#include "dropout.h"
#include "half.h"
#include "transformer.h"

namespace ds {
namespace {

constexpr std::int64_t kKeys = 64;  // Keys whose scores there are at a time.

struct AttentionKernels {
  void (*forward)(const LayerAttention&, const DropoutPlan&, std::int64_t first, std::int64_t last,
                  float* scratch);
  void (*backward)(const LayerAttentionBackward&, const DropoutPlan&, std::int64_t first,
                   std::int64_t last, float* scratch);
};

}  // namespace
}  // namespace ds

#define DS_KERNEL_FILE "attention_kernel.h"
#include "for_each_isa.h"

namespace ds {
namespace {

const AttentionKernels& pick(const CpuOptions& cpu, DType dtype) {
  const CpuIsa isa = resolve_isa(cpu.isa);
  return DS_ON_PATH(isa, attention_kernels(dtype));
}

bool check(const char* name, const LayerAttention& call) {
  transformer::check_dropout(name, call.dropout);
  if (!transformer::check_sizes(name, call.dtype,
                                {call.batch, call.heads, call.tokens, call.head_size})) {
    return false;
  }
  transformer::check_pointers(name, {call.qkv, call.out, call.log_sums});
  return true;
}

// Shares of `units` among threads, each with `floats` of its own.
template <class Run>
void for_units(std::int64_t units, std::int64_t bytes, std::int64_t floats, const CpuOptions& cpu,
               const Run& run) {
  std::vector<float> scratch(static_cast<std::size_t>(floats * threads_of(cpu)));
  for_each_share_of_thread(units, 1, bytes, cpu,
                           [&](int thread, std::int64_t first, std::int64_t last) {
                             run(first, last, scratch.data() + thread * floats);
                           });
}

std::int64_t whole_blocks(std::int64_t size) {
  return (size + 15) / 16 * 16;
}

}  // namespace

void layer_attention(const LayerAttention& call, const CpuOptions& cpu) {
  if (!check("layer_attention", call)) return;
  const DropoutPlan dropout = plan_dropout(call.dropout);
  const auto kernel = pick(cpu, call.dtype).forward;
  for_units(call.batch * call.heads * call.tokens, 16 * call.tokens * call.head_size,
            2 * whole_blocks(call.head_size) + 2 * kKeys, cpu,
            [&](std::int64_t first, std::int64_t last, float* scratch) {
              kernel(call, dropout, first, last, scratch);
            });
}

void layer_attention_backward(const LayerAttentionBackward& call, const CpuOptions& cpu) {
  constexpr const char* kName = "layer_attention_backward";
  const LayerAttention& forward = call.forward;
  if (!check(kName, forward)) return;
  transformer::check_pointers(kName, {call.grad_out, call.grad_qkv});
  const DropoutPlan dropout = plan_dropout(forward.dropout);
  const auto kernel = pick(cpu, forward.dtype).backward;
  const std::int64_t width = whole_blocks(forward.head_size);
  for_units(forward.batch * forward.heads, 64 * forward.tokens * forward.tokens * width,
            (2 * forward.tokens + 3) * width + 2 * kKeys, cpu,
            [&](std::int64_t first, std::int64_t last, float* scratch) {
              kernel(call, dropout, first, last, scratch);
            });
}

}  // namespace ds

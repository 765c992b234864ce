#pragma once

// The kernel of an element-wise optimizer on a GPU: a block takes an item of the work list, a chunk
// of a tensor, and updates them in place. Each thread reads its elements of all runs
// before it computes, and nothing is read twice: bound by memory. Device code; the launch is at the
// end.
//
// A Rule has: `using Factors`, with `grad_multiplier` and `skip`; `kStates`; a constructor from
// Factors; update(param, grad, state0, state1) for one element.

#include <cstdint>

#include "cuda_vector.cuh"
#include "cuda_work_list.h"
#include "optimizer_factors.h"

namespace ds {

inline constexpr int kOptimizerThreads = 256;

namespace cuda_optimizer {

template <class T, int N>
__device__ __forceinline__ void load_as(const void* from, std::int64_t at, float (&values)[N]) {
  Run<T, N> run;
  run.load(static_cast<const T*>(from) + at);
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = widen(run.at[i]);
}

template <class T, int N>
__device__ __forceinline__ void store_as(void* to, std::int64_t at, const float (&values)[N]) {
  Run<T, N> run;
#pragma unroll
  for (int i = 0; i < N; ++i) run.at[i] = narrow<T>(values[i]);
  run.store(static_cast<T*>(to) + at);
}

// N elements of each run from `at`, which is aligned for that unless N is 1. The types that vary at
// run time are those that stand alone: choosing them costs a branch that all threads take alike,
// where a template each would multiply the kernels by nine.
template <int N, class Rule, class P, class S>
__device__ __forceinline__ void update_run(const Rule& rule, const WorkRow& row, float multiplier,
                                           std::int64_t at) {
  float param[N], grad[N], state0[N], state1[N] = {};
  load_as<P>(row.param, at, param);
  load_as<S>(row.states[0], at, state0);
  if constexpr (Rule::kStates > 1) load_as<S>(row.states[1], at, state1);
  if (row.grad_dtype == DType::f32) {
    load_as<float>(row.grad, at, grad);
  } else if (row.grad_dtype == DType::bf16) {
    load_as<bf16>(row.grad, at, grad);
  } else {
    load_as<f16>(row.grad, at, grad);
  }
#pragma unroll
  for (int i = 0; i < N; ++i) {
    rule.update(param[i], grad[i] * multiplier, state0[i], state1[i]);
  }
  store_as<P>(row.param, at, param);
  store_as<S>(row.states[0], at, state0);
  if constexpr (Rule::kStates > 1) store_as<S>(row.states[1], at, state1);
  if (row.copy != nullptr) {
    if (row.copy_dtype == DType::bf16) {
      store_as<bf16>(row.copy, at, param);
    } else {
      store_as<f16>(row.copy, at, param);
    }
  }
}

template <class Rule, class P, class S>
__global__ void __launch_bounds__(kOptimizerThreads, 5)
    update(const WorkRow* rows, const std::uint32_t* items, typename Rule::Factors given,
           const typename Rule::Factors* computed) {
  const WorkRow row = rows[items[blockIdx.x]];
  const typename Rule::Factors factors = computed != nullptr ? *computed : given;
  if (factors.skip) return;
  const Rule rule(factors);
  const float multiplier = factors.grad_multiplier;

  // 8 elements where all is in 16 bits, so that every access has 16 bytes; where f32 takes part, 8
  // would part its 16-byte accesses, and half a sector each costs more than short ones of 16 bits.
  constexpr int N = sizeof(P) + sizeof(S) == 4 ? 8 : 4;
  const std::uint32_t chunk = blockIdx.x - row.first_item;
  constexpr std::int64_t kSize = sizeof(P) == 4 ? kChunk : sizeof(S) == 4 ? kChunk16 : kChunkAll16;
  const std::int64_t begin = row.head + chunk * kSize;
  const int size = static_cast<int>(min(kSize, row.size - begin));
  const int thread = static_cast<int>(threadIdx.x);
  const int vectors = row.is_vector ? size / N : 0;
  for (int i = thread; i < vectors; i += kOptimizerThreads) {
    update_run<N, Rule, P, S>(rule, row, multiplier, begin + i * N);
  }
  // One by one: what lies before the first boundary, and behind the last; or all of it.
  const int head = chunk == 0 ? static_cast<int>(row.head) : 0;
  const int rest = size - vectors * N + head;
  for (int i = thread; i < rest; i += kOptimizerThreads) {
    update_run<1, Rule, P, S>(rule, row, multiplier,
                              i < head ? i : begin + vectors * N + (i - head));
  }
}

// One thread, before the step: the factors from numbers that lie on the device.
template <class Options, class Factors>
__global__ void prepare(Options options, GradientOptions gradients, OptimizerScalars scalars,
                        Factors* factors) {
  *factors = resolved_factors(options, gradients, scalars);
}

// For types that check_work has passed; whether the launch succeeded, cudaGetLastError() says.
// `computed` lies on the device and is used instead of `given` if it is not null.
template <class Rule>
void launch(const WorkGroup& group, const WorkRow* rows, const std::uint32_t* all_items,
            const typename Rule::Factors& given, const typename Rule::Factors* computed,
            cudaStream_t stream) {
  const std::uint32_t* items = all_items + group.first_item;
  const auto run = [&](auto param, auto state) {
    update<Rule, decltype(param), decltype(state)>
        <<<group.items, kOptimizerThreads, 0, stream>>>(rows, items, given, computed);
  };
  const bool wide = group.state_dtype == DType::f32;
  switch (group.param_dtype) {
    case DType::f32:
      if (wide) run(float{}, float{});
      if (group.state_dtype == DType::f16) run(float{}, f16{});
      if (group.state_dtype == DType::bf16) run(float{}, bf16{});
      break;
    case DType::f16:
      wide ? run(f16{}, float{}) : run(f16{}, f16{});
      break;
    case DType::bf16:
      wide ? run(bf16{}, float{}) : run(bf16{}, bf16{});
      break;
  }
}

}  // namespace cuda_optimizer
}  // namespace ds

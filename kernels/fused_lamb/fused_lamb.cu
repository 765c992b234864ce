// LAMB. Blocks of 256 threads take items by a ticket in the order of lamb_list.h, which says why
// that order; a thread holds 8 elements of a chunk in registers, and at most one more of those that
// lie before its first 16-byte boundary or behind its last. Traffic an element in f32: 24 bytes in
// pass A, 4 in pass B and the 12 that the L2 cache does not hold any more; 28 in all where it does.

#include "cuda_optimizer.cuh"
#include "launch.h"

namespace ds::fused_lamb_cuda {

constexpr int kThreads = kOptimizerThreads;
constexpr int kHeld = static_cast<int>(kChunk) / kThreads;  // Of a chunk, a thread.
static_assert(kHeld == 8, "as the unrolled loops have it");

// What does not come back is no use to the cache; what pass B wants again is. Loads of pass B come
// from where other multiprocessors wrote, which is never the first cache.
enum class Hint { keep, leave };

template <Hint H, class Word>
__device__ __forceinline__ Word load_word(const Word* from) {
  if constexpr (H == Hint::leave) return __ldcs(from);
  return __ldcg(from);
}
template <Hint H, class Word>
__device__ __forceinline__ void store_word(Word* to, Word value) {
  if constexpr (H == Hint::leave) {
    __stcs(to, value);
  } else {
    __stcg(to, value);
  }
}
// The two 16-bit structs as the words that the intrinsics know.
template <class T>
struct WordOf {
  using Type = unsigned short;
};
template <>
struct WordOf<float> {
  using Type = float;
};

// Where the elements of a chunk are: N at a time, 256 threads side by side.
struct Place {
  std::int64_t begin;  // Of the chunk, in the tensor.
  int size;            // Elements from there, without the head.
  int vectors;         // N elements each that can be read at once; none in a tensor that is askew.
  int rest, head;      // Elements that are read one by one, and how many of them are the head.
};

template <int N>
__device__ __forceinline__ Place place_of(const WorkRow& row, std::uint32_t chunk) {
  Place place;
  place.begin = row.head + chunk * kChunk;
  place.size = static_cast<int>(min(kChunk, row.size - place.begin));
  place.vectors = row.is_vector ? place.size / N : 0;
  place.head = chunk == 0 ? static_cast<int>(row.head) : 0;
  place.rest = place.size - place.vectors * N + place.head;
  return place;
}

// Calls `body(k, at, is_run)` for what this thread has of the chunk: k is where its registers are.
// In a tensor that is askew all elements are single ones, 8 a thread and with the head one more.
template <int N, class Run_, class Single>
__device__ __forceinline__ void for_each_held(const Place& place, const Run_& run,
                                              const Single& single) {
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int k = 0; k < kHeld / N; ++k) {
    const int i = k * kThreads + thread;
    if (i < place.vectors) run(k * N, place.begin + i * N);
  }
  if (place.vectors > 0 || place.rest <= kThreads) {
    if (thread < place.rest) {
      single(kHeld, thread < place.head ? thread
                                        : place.begin + place.vectors * N + (thread - place.head));
    }
    return;
  }
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    const int i = k * kThreads + thread;
    if (i < place.rest) single(k, place.begin + i);
  }
}

template <Hint H, class T, int N>
__device__ __forceinline__ void load_run(const void* from, std::int64_t at, float* values) {
  Run<T, N> run;
  using Word = typename Run<T, N>::Word;
#pragma unroll
  for (int i = 0; i < Run<T, N>::kWords; ++i) {
    reinterpret_cast<Word*>(run.at)[i] =
        load_word<H>(reinterpret_cast<const Word*>(static_cast<const T*>(from) + at) + i);
  }
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = widen(run.at[i]);
}

template <Hint H, class T>
__device__ __forceinline__ float load_one(const void* from, std::int64_t at) {
  using Word = typename WordOf<T>::Type;
  const Word word = load_word<H>(static_cast<const Word*>(from) + at);
  T value;
  memcpy(&value, &word, sizeof value);
  return widen(value);
}

template <Hint H, class T, int N>
__device__ __forceinline__ void store_run(void* to, std::int64_t at, const float* values) {
  Run<T, N> run;
#pragma unroll
  for (int i = 0; i < N; ++i) run.at[i] = narrow<T>(values[i]);
  using Word = typename Run<T, N>::Word;
#pragma unroll
  for (int i = 0; i < Run<T, N>::kWords; ++i) {
    store_word<H>(reinterpret_cast<Word*>(static_cast<T*>(to) + at) + i,
                  reinterpret_cast<const Word*>(run.at)[i]);
  }
}

template <Hint H, class T>
__device__ __forceinline__ void store_one(void* to, std::int64_t at, float value) {
  using Word = typename WordOf<T>::Type;
  const T narrowed = narrow<T>(value);
  Word word;
  memcpy(&word, &narrowed, sizeof word);
  store_word<H>(static_cast<Word*>(to) + at, word);
}

template <int N>
__device__ __forceinline__ void load_grad(const WorkRow& row, std::int64_t at, float* grad) {
  if (row.grad_dtype == DType::f32) {
    load_run<Hint::leave, float, N>(row.grad, at, grad);
  } else if (row.grad_dtype == DType::bf16) {
    load_run<Hint::leave, bf16, N>(row.grad, at, grad);
  } else {
    load_run<Hint::leave, f16, N>(row.grad, at, grad);
  }
}

__device__ __forceinline__ float load_one_grad(const WorkRow& row, std::int64_t at) {
  if (row.grad_dtype == DType::f32) return load_one<Hint::leave, float>(row.grad, at);
  if (row.grad_dtype == DType::bf16) return load_one<Hint::leave, bf16>(row.grad, at);
  return load_one<Hint::leave, f16>(row.grad, at);
}

// See fused_adam.cu.
__device__ __forceinline__ float blend(float average, float value, float weight, float rest) {
  return weight <= 0.5f ? average + weight * (value - average) : value + rest * (average - value);
}

__device__ __forceinline__ float direction(const FusedLambFactors& f, float p, float m, float v) {
  return m * f.inv_correction1 / (sqrtf(v) * f.inv_correction2 + f.eps) + f.weight_decay * p;
}

// New m and v, as they are stored, from the old ones.
template <class S>
__device__ __forceinline__ void average(const FusedLambFactors& f, float g, float& m, float& v) {
  g = g * f.grad_multiplier;
  m = widen(narrow<S>(blend(m, g, f.weight1, f.rest1)));
  v = widen(narrow<S>(blend(v, g * g, f.weight2, f.rest2)));
}

// Sums over the block, in an order that does not change; thread 0 has the result.
__device__ __forceinline__ NormSquares sum_over_block(NormSquares sum) {
  __shared__ NormSquares warps[kThreads / 32];
  const auto over_warp = [&] {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      sum.p += __shfl_down_sync(0xffffffffu, sum.p, distance);
      sum.u += __shfl_down_sync(0xffffffffu, sum.u, distance);
    }
  };
  over_warp();
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x < 32) {
    sum = threadIdx.x < kThreads / 32 ? warps[threadIdx.x] : NormSquares{0.0, 0.0};
    over_warp();
  }
  __syncthreads();
  return sum;
}

__device__ __forceinline__ float trust_ratio(const FusedLambFactors& f, const NormSquares& sum) {
  if (sum.p == 0.0 || sum.u == 0.0) return 1.0f;
  const float ratio = static_cast<float>(sqrt(sum.p / sum.u));
  return ratio < f.min_ratio ? f.min_ratio : ratio > f.max_ratio ? f.max_ratio : ratio;
}

template <class P, int N>
__device__ __forceinline__ void store_params(const WorkRow& row, std::int64_t at,
                                             const float* values) {
  store_run<Hint::leave, P, N>(row.param, at, values);
  if (row.copy == nullptr) return;
  if (row.copy_dtype == DType::bf16) {
    store_run<Hint::leave, bf16, N>(row.copy, at, values);
  } else {
    store_run<Hint::leave, f16, N>(row.copy, at, values);
  }
}

template <class P>
__device__ __forceinline__ void store_one_param(const WorkRow& row, std::int64_t at, float value) {
  store_one<Hint::leave, P>(row.param, at, value);
  if (row.copy == nullptr) return;
  if (row.copy_dtype == DType::bf16) {
    store_one<Hint::leave, bf16>(row.copy, at, value);
  } else {
    store_one<Hint::leave, f16>(row.copy, at, value);
  }
}

// Of each element that this thread holds, p and u.
struct Held {
  float p[kHeld + 1], u[kHeld + 1];
};

// Pass A of a chunk. `sum` is this thread's part.
template <class P, class S, int N>
__device__ __forceinline__ void pass_a(const FusedLambFactors& f, const WorkRow& row,
                                       const Place& place, Held& held, NormSquares& sum) {
  float p_squares = 0.0f, u_squares = 0.0f;
  for_each_held<N>(
      place,
      [&](int k, std::int64_t at) {
        float g[N], m[N], v[N];
        load_run<Hint::keep, P, N>(row.param, at, held.p + k);
        load_run<Hint::keep, S, N>(row.states[0], at, m);
        load_run<Hint::keep, S, N>(row.states[1], at, v);
        load_grad<N>(row, at, g);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          average<S>(f, g[i], m[i], v[i]);
          const float p = held.p[k + i], u = direction(f, p, m[i], v[i]);
          held.u[k + i] = u;
          p_squares += p * p;
          u_squares += u * u;
        }
        store_run<Hint::keep, S, N>(row.states[0], at, m);
        store_run<Hint::keep, S, N>(row.states[1], at, v);
      },
      [&](int k, std::int64_t at) {
        const float p = load_one<Hint::keep, P>(row.param, at);
        float m = load_one<Hint::keep, S>(row.states[0], at);
        float v = load_one<Hint::keep, S>(row.states[1], at);
        average<S>(f, load_one_grad(row, at), m, v);
        const float u = direction(f, p, m, v);
        held.p[k] = p;
        held.u[k] = u;
        p_squares += p * p;
        u_squares += u * u;
        store_one<Hint::keep, S>(row.states[0], at, m);
        store_one<Hint::keep, S>(row.states[1], at, v);
      });
  sum = {p_squares, u_squares};
}

// p - lr·r·u from what pass A left in registers.
template <class P, int N>
__device__ __forceinline__ void apply_held(const WorkRow& row, const Place& place, const Held& held,
                                           float step) {
  for_each_held<N>(
      place,
      [&](int k, std::int64_t at) {
        float p[N];
#pragma unroll
        for (int i = 0; i < N; ++i) p[i] = held.p[k + i] - step * held.u[k + i];
        store_params<P, N>(row, at, p);
      },
      [&](int k, std::int64_t at) { store_one_param<P>(row, at, held.p[k] - step * held.u[k]); });
}

// The same from memory: pass B.
template <class P, class S, int N>
__device__ __forceinline__ void pass_b(const FusedLambFactors& f, const WorkRow& row,
                                       const Place& place, float step) {
  for_each_held<N>(
      place,
      [&](int, std::int64_t at) {
        float p[N], m[N], v[N];
        load_run<Hint::keep, P, N>(row.param, at, p);
        load_run<Hint::keep, S, N>(row.states[0], at, m);
        load_run<Hint::keep, S, N>(row.states[1], at, v);
#pragma unroll
        for (int i = 0; i < N; ++i) p[i] = p[i] - step * direction(f, p[i], m[i], v[i]);
        store_params<P, N>(row, at, p);
      },
      [&](int, std::int64_t at) {
        const float p = load_one<Hint::keep, P>(row.param, at);
        const float u = direction(f, p, load_one<Hint::keep, S>(row.states[0], at),
                                  load_one<Hint::keep, S>(row.states[1], at));
        store_one_param<P>(row, at, p - step * u);
      });
}

__device__ __forceinline__ unsigned long long load_acquire(const unsigned long long* from) {
  unsigned long long value;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}
__device__ __forceinline__ void store_release(unsigned long long* to, unsigned long long value) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

// The row's last chunk of pass A is done: whoever finds that, adds up the chunks, in their order.
__device__ __forceinline__ void finish_row(const FusedLambFactors& f, const LambRow& row,
                                           std::uint32_t row_index, const Scratch& scratch,
                                           float* trust_ratios) {
  NormSquares sum{0.0, 0.0};
  for (std::uint32_t i = threadIdx.x; i < row.chunks; i += kThreads) {
    const double2 part =
        __ldcg(reinterpret_cast<const double2*>(scratch.partials + row.first_partial + i));
    sum.p += part.x;
    sum.u += part.y;
  }
  sum = sum_over_block(sum);
  if (threadIdx.x == 0) {
    const float ratio = trust_ratio(f, sum);
    if (trust_ratios != nullptr) trust_ratios[row.index] = ratio;
    store_release(scratch.ratio + row_index, 1ull << 32 | __float_as_uint(ratio));
  }
}

template <class P, class S>
__global__ void __launch_bounds__(kThreads)
    step(const LambRow* rows, const LambItem* items, std::uint32_t count, Scratch scratch,
         FusedLambFactors given, const FusedLambFactors* computed, float* trust_ratios) {
  constexpr int N = sizeof(P) + sizeof(S) == 4 ? 8 : 4;
  __shared__ std::uint32_t tickets[2];
  __shared__ float shared_ratio;
  __shared__ bool last;
  const FusedLambFactors f = computed != nullptr ? *computed : given;
  if (f.skip) return;
  if (threadIdx.x == 0) tickets[0] = atomicAdd(scratch.ticket, 1u);
  __syncthreads();
  for (int turn = 0;; turn ^= 1) {
    const std::uint32_t ticket = tickets[turn];
    if (ticket >= count) return;
    // The next one, ahead of time. A block may wait while it holds it: whoever waits does so for
    // lower tickets than its own, so the lowest that is held can always go on.
    std::uint32_t next = 0;
    if (threadIdx.x == 0) next = atomicAdd(scratch.ticket, 1u);
    const LambItem item = items[ticket];
    const LambRow& row = rows[item.row];
    const WorkRow work = row.work;
    const Place place = place_of<N>(work, item.chunk);
    const auto pass = static_cast<LambPass>(item.pass);
    if (pass == LambPass::b) {
      if (threadIdx.x == 0) {
        unsigned long long ratio;
        while ((ratio = load_acquire(scratch.ratio + item.row)) == 0) __nanosleep(100);
        shared_ratio = __uint_as_float(static_cast<std::uint32_t>(ratio));
      }
      __syncthreads();
      pass_b<P, S, N>(f, work, place, f.lr * shared_ratio);
    } else {
      Held held;
      NormSquares sum;
      pass_a<P, S, N>(f, work, place, held, sum);
      sum = sum_over_block(sum);
      if (pass == LambPass::both) {
        if (threadIdx.x == 0) {
          shared_ratio = trust_ratio(f, sum);
          if (trust_ratios != nullptr) trust_ratios[row.index] = shared_ratio;
        }
        __syncthreads();
        apply_held<P, N>(work, place, held, f.lr * shared_ratio);
      } else {
        // The barriers in sum_over_block stand between every thread's stores and this fence.
        if (threadIdx.x == 0) {
          scratch.partials[row.first_partial + item.chunk] = sum;
          __threadfence();
          last = atomicAdd(scratch.done + item.row, 1u) == row.chunks - 1;
          __threadfence();
        }
        __syncthreads();
        if (last) finish_row(f, row, item.row, scratch, trust_ratios);
      }
    }
    if (threadIdx.x == 0) tickets[turn ^ 1] = next;
    __syncthreads();
  }
}

void prepare(const FusedLambOptions& options, const GradientOptions& gradients,
             const OptimizerScalars& scalars, FusedLambFactors* factors, void* stream) {
  cuda_optimizer::prepare<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(options, gradients,
                                                                          scalars, factors);
}

void launch(const LambGroup& group, const LambRow* rows, const LambItem* all_items,
            const Scratch& scratch, const FusedLambFactors& given, const FusedLambFactors* computed,
            float* trust_ratios, int multiprocessors, void* stream) {
  const auto run = [&](auto param, auto state) {
    const auto kernel = step<decltype(param), decltype(state)>;
    int blocks = 1;
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kThreads, 0);
    const std::size_t grid = std::min<std::size_t>(
        group.items, static_cast<std::size_t>(multiprocessors) * std::max(blocks, 1));
    kernel<<<static_cast<unsigned>(grid), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        rows, all_items + group.first_item, static_cast<std::uint32_t>(group.items), scratch, given,
        computed, trust_ratios);
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

}  // namespace ds::fused_lamb_cuda

// LAMB. A block is eight warps that compute and one, the scout, that deals with all that has to be
// waited for: it takes the next item by a ticket, in the order of lamb_list.h, which says why that
// order, reads its row, waits for the trust ratio if it is one of pass B, and when the others are
// done with an item of pass A brings its sums to the rest. So those never wait for more than their
// own elements. Traffic an element in f32: 24 bytes in pass A, 4 in pass B and the 12 that the L2
// cache does not hold any more; 28 in all where it does.

#include "cuda_optimizer.cuh"
#include "launch.h"

namespace ds::fused_lamb_cuda {

constexpr int kWorkers = 256;
constexpr int kThreads = kWorkers + 32;
constexpr int kWarps = kWorkers / 32;

// What does not come back is no use to the second cache; what pass B wants again is. Pass A leaves
// nothing in a first cache, so pass B cannot find an old value there.
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

// Calls run(at) for N elements each and single(at) for those that do not fill one, of what this
// worker has of `size` elements from `begin`; and for the row's head if the part is its first.
template <int N, class Run_, class Single>
__device__ __forceinline__ void for_each(const WorkRow& row, std::int64_t begin, int size,
                                         const Run_& run, const Single& single) {
  const int worker = static_cast<int>(threadIdx.x);
  const int vectors = row.is_vector ? size / N : 0;
#pragma unroll 1
  for (int i = worker; i < vectors; i += kWorkers) run(begin + i * N);
  const int head = begin == row.head ? static_cast<int>(row.head) : 0;
  const int rest = size - vectors * N + head;
#pragma unroll 1
  for (int i = worker; i < rest; i += kWorkers) {
    single(i < head ? i : begin + vectors * N + (i - head));
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
  return m * f.inv_correction1 / (sqrtf(v + f.eps_inside) * f.inv_correction2 + f.eps) +
         f.weight_decay * p;
}

// New m and v, as they are stored, from the old ones.
template <class S>
__device__ __forceinline__ void average(const FusedLambFactors& f, float g, float& m, float& v) {
  g = g * f.grad_multiplier;
  m = widen(narrow<S>(blend(m, g, f.weight1, f.rest1)));
  v = widen(narrow<S>(blend(v, g * g, f.weight2, f.rest2)));
}

// Lane 0 has the sum over the warp, made in an order that does not change.
__device__ __forceinline__ NormSquares sum_over_warp(NormSquares sum) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    sum.p += __shfl_down_sync(0xffffffffu, sum.p, distance);
    sum.u += __shfl_down_sync(0xffffffffu, sum.u, distance);
  }
  return sum;
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

// Pass A of a part of a tensor. Gives this thread's share of the sums.
template <class P, class S, int N>
__device__ __forceinline__ NormSquares pass_a(const FusedLambFactors& f, const WorkRow& row,
                                              std::int64_t begin, int size) {
  // In float: few elements a thread. What many threads have is added up in double.
  float p_squares = 0.0f, u_squares = 0.0f;
  for_each<N>(
      row, begin, size,
      [&](std::int64_t at) {
        float p[N], g[N], m[N], v[N];
        load_run<Hint::keep, P, N>(row.param, at, p);
        load_run<Hint::keep, S, N>(row.states[0], at, m);
        load_run<Hint::keep, S, N>(row.states[1], at, v);
        load_grad<N>(row, at, g);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          average<S>(f, g[i], m[i], v[i]);
          const float u = direction(f, p[i], m[i], v[i]);
          p_squares += p[i] * p[i];
          u_squares += u * u;
        }
        store_run<Hint::keep, S, N>(row.states[0], at, m);
        store_run<Hint::keep, S, N>(row.states[1], at, v);
      },
      [&](std::int64_t at) {
        const float p = load_one<Hint::keep, P>(row.param, at);
        float m = load_one<Hint::keep, S>(row.states[0], at);
        float v = load_one<Hint::keep, S>(row.states[1], at);
        average<S>(f, load_one_grad(row, at), m, v);
        const float u = direction(f, p, m, v);
        p_squares += p * p;
        u_squares += u * u;
        store_one<Hint::keep, S>(row.states[0], at, m);
        store_one<Hint::keep, S>(row.states[1], at, v);
      });
  return {p_squares, u_squares};
}

// Pass B: p - step·u, with step = lr·r.
template <class P, class S, int N>
__device__ __forceinline__ void pass_b(const FusedLambFactors& f, const WorkRow& row,
                                       std::int64_t begin, int size, float step) {
  for_each<N>(
      row, begin, size,
      [&](std::int64_t at) {
        float p[N], m[N], v[N];
        load_run<Hint::leave, P, N>(row.param, at, p);
        load_run<Hint::leave, S, N>(row.states[0], at, m);
        load_run<Hint::leave, S, N>(row.states[1], at, v);
#pragma unroll
        for (int i = 0; i < N; ++i) p[i] = p[i] - step * direction(f, p[i], m[i], v[i]);
        store_params<P, N>(row, at, p);
      },
      [&](std::int64_t at) {
        const float p = load_one<Hint::leave, P>(row.param, at);
        const float u = direction(f, p, load_one<Hint::leave, S>(row.states[0], at),
                                  load_one<Hint::leave, S>(row.states[1], at));
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

// A barrier in shared memory for those who only say that they are done, and one who waits for them.
class DoneBarrier {
 public:
  __device__ void init(unsigned arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address()), "r"(arrivals) : "memory");
  }
  __device__ void arrive() {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(address())
                 : "memory");
  }
  // For the end of phase 0, 1, 0, ...
  __device__ void wait(unsigned phase) {
    unsigned done = 0;
    while (done == 0) {
#if __CUDA_ARCH__ >= 900
      asm volatile(
          "{\n.reg .pred is_done;\nmbarrier.try_wait.parity.shared.b64 is_done, [%1], %2;\n"
          "selp.u32 %0, 1, 0, is_done;\n}"
          : "=r"(done)
          : "r"(address()), "r"(phase)
          : "memory");
#else
      asm volatile(
          "{\n.reg .pred is_done;\nmbarrier.test_wait.parity.shared.b64 is_done, [%1], %2;\n"
          "selp.u32 %0, 1, 0, is_done;\n}"
          : "=r"(done)
          : "r"(address()), "r"(phase)
          : "memory");
      if (done == 0) __nanosleep(20);
#endif
    }
  }

 private:
  __device__ unsigned address() const {
    return static_cast<unsigned>(__cvta_generic_to_shared(&word));
  }
  unsigned long long word;
};

// What the scout tells the workers of an item, and they it.
struct Slot {
  LambRow row;
  LambItem item;
  bool stop;
  float ratio;               // Pass B.
  NormSquares sums[kWarps];  // Pass A.
  DoneBarrier done;          // Of all workers.
};

// Barriers of the block by number; of the first, both kinds of warps count.
constexpr int kFilled = 1;  // And one more, for the second slot.
constexpr int kBarrierAmongWorkers = 3;

__device__ __forceinline__ void arrive(int barrier) {
  asm volatile("barrier.cta.arrive %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}
__device__ __forceinline__ void wait(int barrier) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}
__device__ __forceinline__ void wait_among_workers() {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(kBarrierAmongWorkers), "n"(kWorkers) : "memory");
}

class Scout {
 public:
  __device__ Scout(const FusedLambFactors& factors, const Scratch& scratch_, float* ratios)
      : f(factors), scratch(scratch_), trust_ratios(ratios), lane(threadIdx.x % 32) {}

  __device__ void run(Slot* slots, const LambRow* rows, const LambItem* items,
                      std::uint32_t count) {
    std::uint32_t next = take();
    for (int turn = 0;; turn ^= 1) {
      const std::uint32_t ticket = __shfl_sync(0xffffffffu, next, 0);
      Slot& slot = slots[turn];
      if (ticket >= count) {
        if (lane == 0) slot.stop = true;
        __syncwarp();
        arrive(kFilled + turn);
        finish_pending(slots, turn ^ 1);
        return;
      }
      // Ahead of time. A block may wait while it holds a ticket: whoever waits does so for lower
      // ones than its own, so the lowest that is held can always go on.
      next = take();
      const LambItem item = items[ticket];
      fill_row(slot, rows[item.row]);
      float ratio = 0.0f;
      if (item.pass == static_cast<std::uint32_t>(LambPass::b)) {
        unsigned long long word = load_acquire(scratch.ratio + item.row);
        if (word == 0) {
          finish_pending(slots, turn ^ 1);  // It may be what the others wait for.
          while ((word = load_acquire(scratch.ratio + item.row)) == 0) __nanosleep(50);
        }
        ratio = __uint_as_float(static_cast<std::uint32_t>(word));
      }
      if (lane == 0) {
        slot.item = item;
        slot.stop = false;
        slot.ratio = ratio;
      }
      __syncwarp();
      arrive(kFilled + turn);
      finish_pending(slots, turn ^ 1);
      pending = true;
    }
  }

 private:
  __device__ std::uint32_t take() const { return lane == 0 ? atomicAdd(scratch.ticket, 1u) : 0u; }

  __device__ void fill_row(Slot& slot, const LambRow& row) const {
    __syncwarp();  // All lanes are done with the row that was there.
    constexpr unsigned kWords = sizeof(LambRow) / sizeof(uint4);
    static_assert(sizeof(LambRow) % sizeof(uint4) == 0 && kWords <= 32, "a word a lane");
    if (lane < kWords) {
      reinterpret_cast<uint4*>(&slot.row)[lane] = reinterpret_cast<const uint4*>(&row)[lane];
    }
  }

  // Waits for the workers to be done with the item in the slot, if there is one, and counts it.
  __device__ void finish_pending(Slot* slots, int turn) {
    if (!pending) return;
    pending = false;
    Slot& slot = slots[turn];
    slot.done.wait(phases >> turn & 1u);
    phases ^= 1u << turn;
    if (slot.item.pass != static_cast<std::uint32_t>(LambPass::a)) return;
    const LambRow& row = slot.row;
    const NormSquares sum = sum_over_warp(lane < kWarps ? slot.sums[lane] : NormSquares{0.0, 0.0});
    bool last = false;
    if (lane == 0) {
      scratch.partials[row.first_partial + slot.item.chunk] = sum;
      // After the barrier, so that it holds for what the workers stored, too.
      __threadfence();
      last = atomicAdd(scratch.done + slot.item.row, 1u) == row.chunks - 1;
    }
    if (__shfl_sync(0xffffffffu, last, 0)) {
      __threadfence();
      finish_row(row, slot.item.row);
    }
  }

  // The row's last chunk of pass A is done: whoever finds that adds up the chunks.
  __device__ void finish_row(const LambRow& row, std::uint32_t row_index) const {
    const auto* partials = reinterpret_cast<const double2*>(scratch.partials + row.first_partial);
    NormSquares sum{0.0, 0.0};
    constexpr unsigned kAtOnce = 8;
    for (std::uint32_t i = lane; i < row.chunks; i += 32 * kAtOnce) {
      double2 parts[kAtOnce];
#pragma unroll
      for (unsigned k = 0; k < kAtOnce; ++k) {
        const std::uint32_t at = i + 32 * k;
        parts[k] = at < row.chunks ? __ldcg(partials + at) : double2{0.0, 0.0};
      }
#pragma unroll
      for (unsigned k = 0; k < kAtOnce; ++k) {
        sum.p += parts[k].x;
        sum.u += parts[k].y;
      }
    }
    sum = sum_over_warp(sum);
    if (lane != 0) return;
    const float ratio = trust_ratio(f, sum);
    if (trust_ratios != nullptr) trust_ratios[row.index] = ratio;
    store_release(scratch.ratio + row_index, 1ull << 32 | __float_as_uint(ratio));
  }

  const FusedLambFactors& f;
  const Scratch& scratch;
  float* trust_ratios;
  unsigned lane;
  bool pending = false;  // The other slot holds an item that was not counted yet.
  unsigned phases = 0;   // A bit a slot: the phase of its barrier that is awaited next.
};

template <class P, class S, int N>
__device__ __forceinline__ void work(const FusedLambFactors& f, Slot* slots, float* trust_ratios) {
  constexpr std::int64_t kSize = sizeof(P) == 4 ? kLambChunk : kLambChunk16;
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int turn = 0;; turn ^= 1) {
    Slot& slot = slots[turn];
    wait(kFilled + turn);
    if (slot.stop) return;
    const WorkRow& row = slot.row.work;
    const auto pass = static_cast<LambPass>(slot.item.pass);
    const bool whole = pass == LambPass::both;
    const std::int64_t begin = row.head + (whole ? 0 : slot.item.chunk * kSize);
    const int size = static_cast<int>(whole ? row.size - begin : min(kSize, row.size - begin));
    if (pass != LambPass::b) {
      const NormSquares sum = sum_over_warp(pass_a<P, S, N>(f, row, begin, size));
      if (lane == 0) slot.sums[warp] = sum;
    }
    float ratio = slot.ratio;
    if (whole) {
      wait_among_workers();
      NormSquares sum{0.0, 0.0};
      for (const NormSquares& part : slot.sums) {
        sum.p += part.p;
        sum.u += part.u;
      }
      ratio = trust_ratio(f, sum);
      if (threadIdx.x == 0 && trust_ratios != nullptr) trust_ratios[slot.row.index] = ratio;
    }
    if (pass != LambPass::a) pass_b<P, S, N>(f, row, begin, size, f.lr * ratio);
    slot.done.arrive();
  }
}

template <class P, class S>
__global__ void __launch_bounds__(kThreads, 4)
    step(const LambRow* rows, const LambItem* items, std::uint32_t count, Scratch scratch,
         FusedLambFactors given, const FusedLambFactors* computed, float* trust_ratios) {
  // In shared memory, not in registers: those are better used for elements.
  __shared__ alignas(16) unsigned char slots_memory[2 * sizeof(Slot)];
  __shared__ alignas(16) unsigned char factors_memory[sizeof(FusedLambFactors)];
  auto* const slots = reinterpret_cast<Slot*>(slots_memory);
  auto& f = *reinterpret_cast<FusedLambFactors*>(factors_memory);
  if (threadIdx.x == 0) {
    f = computed != nullptr ? *computed : given;
    for (int i = 0; i < 2; ++i) slots[i].done.init(kWorkers);
  }
  __syncthreads();
  if (f.skip) return;
  if (threadIdx.x >= kWorkers) {
    Scout(f, scratch, trust_ratios).run(slots, rows, items, count);
  } else {
    constexpr int N = sizeof(P) + sizeof(S) == 4 ? 8 : 4;
    work<P, S, N>(f, slots, trust_ratios);
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

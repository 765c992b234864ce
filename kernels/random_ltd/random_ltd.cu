// Four kernels.
//
// Rows of tokens: a thread copies four words of up to 16 bytes, its block's lie together in the
// shorter tensor. Traffic: every kept row once in, once out, and the indices. Bound by memory.
//
// Sorting: the ids of a row are bits of a bitmap in shared memory, which then gives them back in
// order; that is a read and a write of each id, whatever the number of tokens. What a bitmap cannot
// hold is done in windows, each of which reads the row again. If the bits are not as many as the
// ids (an id twice, or one that is no token), the row is sorted by comparisons instead.
//
// Masks: a thread has a few columns of the result, and makes words of 4 bytes of them in one row
// after the other: all rows of a sequence keep the same columns, so they are looked up once.
// Neighbours make neighbours, so that what they read lies in few sectors. Traffic: of each kept row
// of the mask the sectors that have a kept column (all of them where more than a sixteenth of
// 16-bit columns is kept), and the result.

#include <algorithm>
#include <cstring>

#include "cuda_vector.cuh"
#include "group_plan.h"
#include "launch.h"
#include "plan.h"

namespace ds::random_ltd_cuda {

using groups::FastDivision;

constexpr int kThreads = 256;
constexpr int kInFlight = 4;
constexpr std::int64_t kMostWords = std::int64_t{1} << 30;  // 32-bit indices in a launch.

// --- Rows -------------------------------------------------------------------------------------

struct RowCopy {
  TokenRows rows;
  FastDivision words_of_row;
  FastDivision inner;  // Of the shorter tensor's rows as they lie in memory.
  bool token_is_inner;
};

template <class Word, bool kScatter>
__global__ void __launch_bounds__(kThreads)
    copy_rows(const __grid_constant__ RowCopy op, std::uint32_t first_row, std::uint32_t words) {
  const TokenRows& r = op.rows;
  const std::uint32_t begin = blockIdx.x * (kThreads * kInFlight) + threadIdx.x;
  Word value[kInFlight];
  Word* to[kInFlight];
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) {
    const std::uint32_t word = begin + i * kThreads;
    to[i] = nullptr;
    if (word >= words) continue;
    const std::uint32_t row_of_launch = op.words_of_row(word);
    const std::uint32_t column = word - row_of_launch * op.words_of_row.divisor;
    const std::uint32_t row = first_row + row_of_launch;
    const std::uint32_t outer = op.inner(row), in = row - outer * op.inner.divisor;
    const std::int64_t b = op.token_is_inner ? outer : in, k = op.token_is_inner ? in : outer;
    const std::int64_t token = r.indices == nullptr ? k : __ldg(r.indices + b * r.kept + k);
    auto* kept = reinterpret_cast<Word*>(static_cast<char*>(r.kept_rows) + b * r.kept_batch_stride +
                                         k * r.kept_token_stride) +
                 column;
    Word* all = nullptr;
    if (token >= 0 && token < r.tokens) {
      all = reinterpret_cast<Word*>(static_cast<char*>(r.all) + b * r.all_batch_stride +
                                    token * r.all_token_stride) +
            column;
    }
    if (kScatter) {
      to[i] = all;
      value[i] = *kept;
    } else {
      to[i] = kept;
      value[i] = Word{};
      if (all != nullptr) value[i] = *all;
    }
  }
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) {
    if (to[i] != nullptr) *to[i] = value[i];
  }
}

template <class Word>
void copy_in_words(const TokenRows& rows, bool scatter, cudaStream_t stream) {
  const auto width = static_cast<std::int64_t>(sizeof(Word));
  const std::int64_t words = rows.row_bytes / width;
  const bool token_is_inner = rows.kept_token_stride <= rows.kept_batch_stride;
  const RowCopy op{
      rows, FastDivision(static_cast<std::uint32_t>(words)),
      FastDivision(static_cast<std::uint32_t>(token_is_inner ? rows.kept : rows.batch)),
      token_is_inner};
  const std::int64_t all_rows = rows.batch * rows.kept;
  const std::int64_t rows_a_launch = std::max<std::int64_t>(1, kMostWords / words);
  constexpr unsigned kOfBlock = kThreads * kInFlight;
  for (std::int64_t first = 0; first < all_rows; first += rows_a_launch) {
    const auto count =
        static_cast<std::uint32_t>(std::min(rows_a_launch, all_rows - first) * words);
    const unsigned blocks = (count + kOfBlock - 1) / kOfBlock;
    if (scatter) {
      copy_rows<Word, true>
          <<<blocks, kThreads, 0, stream>>>(op, static_cast<std::uint32_t>(first), count);
    } else {
      copy_rows<Word, false>
          <<<blocks, kThreads, 0, stream>>>(op, static_cast<std::uint32_t>(first), count);
    }
  }
}

// --- Sorting ------------------------------------------------------------------------------------

constexpr int kWindowWords = static_cast<int>(kTokenSortInPlace / 32);  // Of a bitmap: 40 KiB.

// The sum over the block of what every warp's first lane has, and what stands before this warp's.
__device__ __forceinline__ std::uint32_t before_warp(std::uint32_t of_warp, std::uint32_t* shared,
                                                     std::uint32_t* all) {
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  __syncthreads();
  if (lane == 0) shared[warp] = of_warp;
  __syncthreads();
  std::uint32_t before = 0, sum = 0;
  const std::uint32_t mine = lane < warps ? shared[lane] : 0;
  before = __reduce_add_sync(0xffffffffu, lane < warp ? mine : 0u);
  sum = __reduce_add_sync(0xffffffffu, mine);
  *all = sum;
  return before;
}

// Bitonic, with the smaller number always to the lower place, so that what stands behind the end
// can be left out.
__device__ __forceinline__ void sort_by_comparisons(std::int32_t* row, std::int64_t size) {
  const auto in_order = [&](std::int64_t low, std::int64_t high) {
    if (high >= size || row[low] <= row[high]) return;
    const std::int32_t larger = row[low];
    row[low] = row[high];
    row[high] = larger;
  };
  for (std::int64_t length = 2; length < 2 * size; length *= 2) {
    for (std::int64_t i = threadIdx.x; i < (size + length - 1) / length * (length / 2);
         i += blockDim.x) {
      const std::int64_t start = i / (length / 2) * length, at = i % (length / 2);
      in_order(start + at, start + length - 1 - at);
    }
    __syncthreads();
    for (std::int64_t half = length / 4; half > 0; half /= 2) {
      for (std::int64_t i = threadIdx.x; i < (size + 2 * half - 1) / (2 * half) * half;
           i += blockDim.x) {
        const std::int64_t low = i / half * 2 * half + i % half;
        in_order(low, low + half);
      }
      __syncthreads();
    }
  }
}

__global__ void __launch_bounds__(1024)
    sort_rows(const __grid_constant__ TokenSort op, int window_words) {
  extern __shared__ std::uint32_t bitmap[];
  __shared__ std::uint32_t of_warps[32];
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  for (std::int64_t row = blockIdx.x; row < op.rows; row += gridDim.x) {
    const std::int32_t* ids = op.ids + row * op.size;
    std::int32_t* sorted = op.sorted + row * op.size;
    std::int64_t done = 0;
    const std::int64_t window = std::int64_t{window_words} * 32;
    const bool one_window = op.tokens <= window;
    for (std::int64_t low = 0; low < op.tokens; low += window) {
      for (int w = threadIdx.x; w < window_words; w += blockDim.x) bitmap[w] = 0;
      __syncthreads();
      const auto high = static_cast<std::uint32_t>(min(window, op.tokens - low));
      constexpr int kAtOnce = 8;
      for (std::int64_t i = threadIdx.x; i < op.size; i += kAtOnce * blockDim.x) {
        std::uint32_t id[kAtOnce];
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          const std::int64_t at = i + static_cast<std::int64_t>(k) * blockDim.x;
          const std::int64_t above = at < op.size ? ids[at] - low : -1;
          id[k] = above < 0 ? 0xffffffffu : static_cast<std::uint32_t>(above);
        }
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          if (id[k] < high) atomicOr(bitmap + id[k] / 32, 1u << id[k] % 32);
        }
      }
      __syncthreads();
      // A warp has a run of whole words; a lane each of 32 counts, then all lanes write each word.
      const int words = static_cast<int>((high + 31) / 32);
      const int a_warp = (words + static_cast<int>(warps) - 1) / static_cast<int>(warps);
      const int first = static_cast<int>(warp) * a_warp, last = min(first + a_warp, words);
      std::uint32_t bits = 0;
      for (int w = first + static_cast<int>(lane); w < last; w += 32) bits += __popc(bitmap[w]);
      bits = __reduce_add_sync(0xffffffffu, bits);
      std::uint32_t all = 0;
      std::int64_t at = done + before_warp(bits, of_warps, &all);
      done += all;
      // In place, nothing may be lost that the other way needs.
      if (one_window && done != op.size) break;
      for (int w = first; w < last; ++w) {
        const std::uint32_t word = bitmap[w];
        if (word >> lane & 1u) {
          const std::int64_t to = at + __popc(word & ((1u << lane) - 1u));
          sorted[to] = static_cast<std::int32_t>(low + w * 32 + lane);
        }
        at += __popc(word);
      }
      __syncthreads();
    }
    if (done != op.size) {
      for (std::int64_t i = threadIdx.x; i < op.size; i += blockDim.x) sorted[i] = ids[i];
      __syncthreads();
      sort_by_comparisons(sorted, op.size);
    }
  }
}

// --- Masks --------------------------------------------------------------------------------------

constexpr int kWordsOfThread = 2;
constexpr int kRowsAtOnce = 4;
constexpr int kRowsOfTeam = 32;  // In a block.

struct MaskOp {
  MaskGather gather;
  int words_of_row, team_log2;  // 2^team_log2 threads make a row.
  FastDivision blocks_of_sequence;
  FastDivision layers;
};

template <class Element, int kOfWord>
struct alignas(kOfWord * sizeof(Element)) MaskWord {
  Element at[kOfWord];
};

// A block has some rows of one sequence. Layers come last: what they read of a sequence's mask
// stays in the second cache. A row or a column that the mask does not have is 0: it reads another
// one's element and keeps no bit of it.
template <class Element, int kOfWord>
__global__ void __launch_bounds__(kThreads) gather_mask_rows(const __grid_constant__ MaskOp op) {
  const MaskGather& g = op.gather;
  const int team = static_cast<int>(threadIdx.x) >> op.team_log2;
  const int teams = kThreads >> op.team_log2, threads = 1 << op.team_log2;
  const std::uint32_t piece = op.blocks_of_sequence(blockIdx.x);
  const std::uint32_t block = blockIdx.x - piece * op.blocks_of_sequence.divisor;
  const std::uint32_t b = op.layers(piece), layer = piece - b * op.layers.divisor;
  const std::int64_t sequence = std::int64_t{layer} * g.batch + b;
  const std::int32_t* indices = g.indices + sequence * g.kept;
  const auto kept = static_cast<int>(g.kept);
  const int first_row = static_cast<int>(block) * kRowsOfTeam * teams;
  const int last_row = min(first_row + kRowsOfTeam * teams, kept);
  // A negative index becomes one that is too large.
  const auto tokens = static_cast<std::uint32_t>(g.tokens);
  const Element* mask = static_cast<const Element*>(g.mask) + std::int64_t{b} * g.tokens * g.tokens;
  using Word = MaskWord<Element, kOfWord>;
  Element* out = static_cast<Element*>(g.out) + sequence * g.kept * g.kept;
  constexpr auto kAll = static_cast<Element>(~Element{0});
  for (int first = static_cast<int>(threadIdx.x) & (threads - 1); first < op.words_of_row;
       first += threads * kWordsOfThread) {
    std::uint32_t column[kWordsOfThread][kOfWord];
    Element keeps[kWordsOfThread][kOfWord];
#pragma unroll
    for (int w = 0; w < kWordsOfThread; ++w) {
      const int word = first + w * threads;
#pragma unroll
      for (int e = 0; e < kOfWord; ++e) {
        const std::uint32_t token =
            word < op.words_of_row ? static_cast<std::uint32_t>(__ldg(indices + word * kOfWord + e))
                                   : tokens;
        keeps[w][e] = token < tokens ? kAll : Element{0};
        column[w][e] = token < tokens ? token : 0;
      }
    }
    for (int row = first_row + team; row < last_row; row += teams * kRowsAtOnce) {
      Word value[kRowsAtOnce][kWordsOfThread];
#pragma unroll
      for (int r = 0; r < kRowsAtOnce; ++r) {
        const int i = min(row + r * teams, last_row - 1);
        const auto from = static_cast<std::uint32_t>(__ldg(indices + i));
        const Element row_keeps = from < tokens ? kAll : Element{0};
        const Element* line = mask + std::int64_t{from < tokens ? from : 0} * g.tokens;
#pragma unroll
        for (int w = 0; w < kWordsOfThread; ++w) {
#pragma unroll
          for (int e = 0; e < kOfWord; ++e) {
            value[r][w].at[e] = __ldg(line + column[w][e]) & keeps[w][e] & row_keeps;
          }
        }
      }
#pragma unroll
      for (int r = 0; r < kRowsAtOnce; ++r) {
        const int i = row + r * teams;
        if (i >= last_row) continue;
        auto* to = reinterpret_cast<Word*>(out + std::int64_t{i} * g.kept);
#pragma unroll
        for (int w = 0; w < kWordsOfThread; ++w) {
          if (first + w * threads < op.words_of_row) to[first + w * threads] = value[r][w];
        }
      }
    }
  }
}

template <class Element, int kOfWord>
void gather_typed(const MaskGather& gather, cudaStream_t stream) {
  MaskOp op{gather, static_cast<int>(gather.kept / kOfWord), 0, FastDivision(1),
            FastDivision(static_cast<std::uint32_t>(gather.layers))};
  while (op.team_log2 < 8 && (kWordsOfThread << op.team_log2) < op.words_of_row) ++op.team_log2;
  const std::int64_t rows_of_block = kRowsOfTeam * (kThreads >> op.team_log2);
  const auto blocks = static_cast<std::uint32_t>((gather.kept + rows_of_block - 1) / rows_of_block);
  op.blocks_of_sequence = FastDivision(blocks);
  gather_mask_rows<Element, kOfWord>
      <<<static_cast<unsigned>(gather.layers * gather.batch) * blocks, kThreads, 0, stream>>>(op);
}

// --- Launches -----------------------------------------------------------------------------------

void sort(const TokenSort& call, void* stream) {
  const auto words =
      static_cast<int>(std::min<std::int64_t>((call.tokens + 31) / 32, kWindowWords));
  // Few ids want few threads, and many rows then share a multiprocessor; few rows want to be done.
  const int ids_of_thread = call.rows < 1024 ? 4 : 16;
  int threads = 128;
  while (threads < 512 && threads * ids_of_thread < call.size) threads *= 2;
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(call.rows, 1 << 20));
  sort_rows<<<blocks, threads, static_cast<std::size_t>(words) * 4,
              static_cast<cudaStream_t>(stream)>>>(call, words);
}

void copy(const TokenRows& rows, bool scatter, void* stream_) {
  const auto stream = static_cast<cudaStream_t>(stream_);
  switch (random_ltd::word_bytes(rows)) {
    case 16:
      copy_in_words<uint4>(rows, scatter, stream);
      break;
    case 8:
      copy_in_words<uint2>(rows, scatter, stream);
      break;
    case 4:
      copy_in_words<std::uint32_t>(rows, scatter, stream);
      break;
    case 2:
      copy_in_words<std::uint16_t>(rows, scatter, stream);
      break;
    default:
      copy_in_words<std::uint8_t>(rows, scatter, stream);
      break;
  }
}

void gather_masks(const MaskGather& gather, void* stream_) {
  const auto stream = static_cast<cudaStream_t>(stream_);
  if (gather.tokens == 0) {  // A mask without an element to read.
    const std::int64_t count = gather.layers * gather.batch * gather.kept * gather.kept;
    cudaMemsetAsync(gather.out, 0, static_cast<std::size_t>(count * gather.element_size), stream);
    return;
  }
  const std::int64_t row = gather.kept * gather.element_size;
  const bool words = row % 4 == 0 && reinterpret_cast<std::uintptr_t>(gather.out) % 4 == 0 &&
                     reinterpret_cast<std::uintptr_t>(gather.indices) % 16 == 0;
  if (gather.element_size == 1) {
    words ? gather_typed<std::uint8_t, 4>(gather, stream)
          : gather_typed<std::uint8_t, 1>(gather, stream);
  } else if (gather.element_size == 2) {
    words ? gather_typed<std::uint16_t, 2>(gather, stream)
          : gather_typed<std::uint16_t, 1>(gather, stream);
  } else if (gather.element_size == 4) {
    gather_typed<std::uint32_t, 1>(gather, stream);
  } else {
    gather_typed<unsigned long long, 1>(gather, stream);
  }
}

}  // namespace ds::random_ltd_cuda

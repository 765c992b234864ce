// Rows of codes back to f32, f16 and bf16, all or selected slabs. A thread makes eight elements at
// a time, twice eight in flight; what its short loads fetch too much of serves its neighbours
// from L1. Memory traffic an element: bits/8 bytes and 4/group_size in, the output's bytes out.

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "codec.cuh"
#include "plan.h"

namespace ds {
namespace fp_quantizer {
namespace {

using namespace groups;

constexpr int kThreads = 256;

// Vectors of a thread, as measured: where a thread's loads or stores are several, one is best.
// (Four elsewhere: 1.06 times the copy with fp8 and 1.09 with fp4, where two take 1.05 and 1.07;
// stored as what is evicted first, 1.06 and 1.06.)
template <class T, int kBits>
constexpr int kInFlightOf = sizeof(T) == 4 || kBits == 6 ? 1 : 2;

struct Slabs {
  const std::uint8_t* rows;
  void* output;
  std::int64_t group_size, pitch;
  const std::int32_t* indexes;  // Null: all rows.
  std::int64_t slab, slabs;     // Groups of one; how many there are.
  FastDivision slab_of;
  Codec codec;

  // The row that group `group` of the output comes from, or null.
  __device__ __forceinline__ const std::uint8_t* row_of(std::int64_t group,
                                                        std::int64_t slab_index) const {
    if (indexes == nullptr) return rows + group * pitch;
    const std::int64_t index = __ldg(indexes + slab_index);
    if (index < 0 || index >= slabs) return nullptr;
    return rows + (index * slab + (group - slab_index * slab)) * pitch;
  }
};

template <int kBits>
struct EightCodes {
  static constexpr int kWords = (8 * kBits + 31) / 32;
  std::uint32_t word[kWords] = {};

  // `whole`: rows are whole words, so that an address of 6-bit codes can be rounded down to one.
  __device__ __forceinline__ void load(const std::uint8_t* row, std::uint32_t vector, bool whole) {
    const std::uint8_t* from = row + vector * kBits;
    if (kBits == 6) {
      if (whole) {
        const auto* words = reinterpret_cast<const unsigned int*>(row) + vector * 3 / 2;
        const std::uint32_t low = __ldg(words), high = __ldg(words + 1);
        word[0] = vector % 2 == 0 ? low : __byte_perm(low, high, 0x5432);
        word[kWords - 1] = vector % 2 == 0 ? high : high >> 16;
      } else {
        const auto* halves = reinterpret_cast<const unsigned short*>(from);
        word[0] = __ldg(halves) | static_cast<std::uint32_t>(__ldg(halves + 1)) << 16;
        word[kWords - 1] = __ldg(halves + 2);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        word[i] = __ldg(reinterpret_cast<const unsigned int*>(from) + i);
      }
    }
  }
  // Code i in the highest bits.
  __device__ __forceinline__ std::uint32_t top(int i) const {
    const int end = (i + 1) * kBits;  // Bits of the codes up to this one.
    if (end % 32 == 0) return word[end / 32 - 1];
    if (end < 32 || kBits * i / 32 == end / 32) return word[end / 32] << (32 - end % 32);
    return __funnelshift_r(word[end / 32 - 1], word[end / 32], end % 32);
  }
};

template <int kBits>
__device__ __forceinline__ float load_scale(const std::uint8_t* from) {
  if (kBits != 6) return __ldg(reinterpret_cast<const float*>(from));
  const auto* halves = reinterpret_cast<const unsigned short*>(from);
  return __uint_as_float(__ldg(halves) | static_cast<std::uint32_t>(__ldg(halves + 1)) << 16);
}

template <class T, int kBits>
__global__ void __launch_bounds__(kThreads)
    dequantize_vectors(const __grid_constant__ Slabs op, std::int64_t first_group,
                       std::uint32_t vectors, FastDivision group_of) {
  constexpr int kWidth = VectorOf<T>::kWidth;
  constexpr int kInFlight = kInFlightOf<T, kBits>;
  const std::uint32_t begin = blockIdx.x * (kThreads * kInFlight) + threadIdx.x;
  EightCodes<kBits> codes[kInFlight];
  float scale[kInFlight];
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) {
    const std::uint32_t v = begin + i * kThreads;
    if (v >= vectors) continue;
    const std::uint32_t group = group_of(v);
    const std::uint32_t vector = v - group * group_of.divisor;
    const std::int64_t out_group = first_group + group;
    const std::int64_t slab =
        op.indexes == nullptr ? 0 : op.slab_of(static_cast<std::uint32_t>(out_group));
    const std::uint8_t* row = op.row_of(out_group, slab);
    scale[i] = __uint_as_float(0x7fffffffu);
    if (row != nullptr) {
      codes[i].load(row, vector, op.pitch % 4 == 0);
      scale[i] = load_scale<kBits>(row + op.pitch - 4);
    }
  }
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) {
    const std::uint32_t v = begin + i * kThreads;
    if (v >= vectors) continue;
    float x[8];
    // One multiplication where the scale leaves room for it; the result is the same.
    const float both = scale[i] * op.codec.rescale;
    const bool one = fabsf(both) < INFINITY;
#pragma unroll
    for (int k = 0; k < 8; ++k)
      x[k] = fields_of(op.codec, codes[i].top(k)) * (one ? both : op.codec.rescale);
    if (!one) {
#pragma unroll
      for (int k = 0; k < 8; ++k) x[k] *= scale[i];
    }
    auto* out = static_cast<T*>(op.output) + first_group * op.group_size;
    if constexpr (kWidth == 8) {
      store_16(out + std::int64_t{v} * 8, VectorOf<T>::narrow(x));
    } else {
      // A thread's 32 bytes beside its neighbours' would be written by halves: swap them first, so
      // that each store of the warp is of consecutive bytes.
      __shared__ float4 swap[kThreads * 2];
      const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x - lane;
      const unsigned mask = __activemask();
      swap[2 * threadIdx.x] = make_float4(x[0], x[1], x[2], x[3]);
      swap[2 * threadIdx.x + 1] = make_float4(x[4], x[5], x[6], x[7]);
      __syncwarp(mask);
      const int count = __popc(mask);  // The active lanes are the first.
      float4* to = reinterpret_cast<float4*>(out + std::int64_t{v - lane} * 8);
      to[lane] = swap[2 * warp + lane];
      to[lane + count] = swap[2 * warp + lane + count];
      __syncwarp(mask);
    }
  }
}

// Any size and alignment.
template <class T>
__global__ void __launch_bounds__(kThreads)
    dequantize_elements(const __grid_constant__ Slabs op, std::int64_t size) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < size;
       i += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t group = i / op.group_size;
    const std::uint8_t* row = op.row_of(group, op.indexes == nullptr ? 0 : group / op.slab);
    float x = __uint_as_float(0x7fffffffu);
    if (row != nullptr) {
      const std::int64_t bit = (i - group * op.group_size) * op.codec.bits;
      std::uint32_t bytes = row[bit / 8];
      // A code never ends behind the row: its last byte exists.
      if (bit % 8 + op.codec.bits > 8) bytes |= static_cast<std::uint32_t>(row[bit / 8 + 1]) << 8;
      const std::uint32_t code = bytes >> (bit % 8);
      std::uint32_t scale = 0;
      for (int k = 0; k < 4; ++k) {
        scale |= static_cast<std::uint32_t>(row[op.pitch - 4 + k]) << (8 * k);
      }
      x = fields_of(op.codec, code << (32 - op.codec.bits)) * op.codec.rescale *
          __uint_as_float(scale);
    }
    static_cast<T*>(op.output)[i] = narrow<T>(x);
  }
}

template <class T>
void launch(const FpDequantizeCall& call, cudaStream_t stream) {
  const bool selected = call.indexes != nullptr;
  const std::int64_t groups = selected ? call.index_count * call.groups_an_index : call.groups;
  const std::int64_t vectors = call.group_size / 8;
  constexpr std::int64_t kMostVectors = std::int64_t{1} << 30;  // 32-bit indices in a launch.
  const bool slabs_fit = !selected || groups <= std::numeric_limits<std::int32_t>::max();
  const Slabs op{call.rows,
                 call.output,
                 call.group_size,
                 fp_row_bytes(call.group_size, call.format),
                 call.indexes,
                 call.groups_an_index,
                 call.groups / call.groups_an_index,
                 selected && slabs_fit
                     ? FastDivision(static_cast<std::uint32_t>(call.groups_an_index))
                     : FastDivision(),
                 Codec(call.format)};
  if (call.group_size % 8 != 0 || vectors > kMostVectors || !slabs_fit ||
      !is_aligned(call.rows, 4) || !is_aligned(call.output, 16)) {
    const std::int64_t size = groups * call.group_size;
    const auto blocks =
        static_cast<unsigned>(std::min<std::int64_t>((size + kThreads - 1) / kThreads, 1 << 20));
    dequantize_elements<T><<<blocks, kThreads, 0, stream>>>(op, size);
    check_launch("fp_dequantize");
    return;
  }
  const FastDivision group_of(static_cast<std::uint32_t>(vectors));
  const std::int64_t groups_a_launch = kMostVectors / vectors;
  for (std::int64_t first = 0; first < groups; first += groups_a_launch) {
    const auto count =
        static_cast<std::uint32_t>(std::min(groups_a_launch, groups - first) * vectors);
    const auto with = [&](auto bits) {
      constexpr int kBits = decltype(bits)::value;
      constexpr unsigned kOfBlock = kThreads * kInFlightOf<T, kBits>;
      dequantize_vectors<T, kBits>
          <<<(count + kOfBlock - 1) / kOfBlock, kThreads, 0, stream>>>(op, first, count, group_of);
    };
    if (call.format.bits == 12) with(std::integral_constant<int, 12>());
    if (call.format.bits == 8) with(std::integral_constant<int, 8>());
    if (call.format.bits == 6) with(std::integral_constant<int, 6>());
    if (call.format.bits == 4) with(std::integral_constant<int, 4>());
    check_launch("fp_dequantize");
  }
}

}  // namespace
}  // namespace fp_quantizer

void fp_dequantize(const FpDequantizeCall& call, void* stream) {
  using namespace fp_quantizer;
  if (!check(call)) return;
  with_type(call.dtype,
            [&](auto type) { launch<decltype(type)>(call, static_cast<cudaStream_t>(stream)); });
}

}  // namespace ds

// f32, f16 and bf16 to rows of small floating-point codes.
//
// A team of 2^k threads holds a group in registers between the pass that finds its largest
// magnitude and the pass that rounds, so memory is read once. Rows lie at any multiple of 4 bytes
// (codes, then the scale), so a thread's own stores would be short and strided: a block's rows,
// which are consecutive in memory, are put together in shared memory first and leave it 16 bytes at
// a time. Memory traffic an element: the input's bytes, bits/8 of codes, 4/group_size of scale.

#include <algorithm>
#include <stdexcept>
#include <string>

#include "codec.cuh"
#include "plan.h"

namespace ds {
namespace fp_quantizer {
namespace {

using namespace groups;

struct Rows {
  const void* input;
  std::uint8_t* rows;
  std::int64_t group_size, pitch;
  RandomSource random;
  Codec codec;
};

// Eight elements.
template <class T>
struct Eight {
  static constexpr int kWidth = VectorOf<T>::kWidth;
  uint4 part[8 / kWidth];

  __device__ __forceinline__ void load(const T* from) {
#pragma unroll
    for (int i = 0; i < 8 / kWidth; ++i) {
      part[i] = load_16(reinterpret_cast<const uint4*>(from) + i);
    }
  }
  __device__ __forceinline__ void widen(float (&x)[8]) const {
#pragma unroll
    for (int i = 0; i < 8 / kWidth; ++i) {
      float some[kWidth];
      VectorOf<T>::widen(part[i], some);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) x[i * kWidth + k] = some[k];
    }
  }
};

// Eight codes to shared memory; 8·bits/8 bytes, at a multiple of 4 bytes, or of 2 with 6 bits.
__device__ __forceinline__ void put_eight(std::uint8_t* to, int bits, const std::uint32_t (&c)[8]) {
  auto* words = reinterpret_cast<std::uint32_t*>(to);
  if (bits == 8) {
    words[0] = low_bytes(c[0], c[1], c[2], c[3]);
    words[1] = low_bytes(c[4], c[5], c[6], c[7]);
  } else if (bits == 4) {
    const std::uint32_t a = low_bytes(c[0], c[1], c[2], c[3]);
    const std::uint32_t b = low_bytes(c[4], c[5], c[6], c[7]);
    words[0] = __byte_perm(a, b, 0x6420) | __byte_perm(a, b, 0x7531) << 4;
  } else if (bits == 12) {
    words[0] = c[0] | c[1] << 12 | c[2] << 24;
    words[1] = c[2] >> 8 | c[3] << 4 | c[4] << 16 | c[5] << 28;
    words[2] = c[5] >> 4 | c[6] << 8 | c[7] << 20;
  } else {
    const std::uint32_t low = c[0] | c[1] << 6 | c[2] << 12 | c[3] << 18 | c[4] << 24 | c[5] << 30;
    auto* halves = reinterpret_cast<std::uint16_t*>(to);
    halves[0] = static_cast<std::uint16_t>(low);
    halves[1] = static_cast<std::uint16_t>(low >> 16);
    halves[2] = static_cast<std::uint16_t>(c[5] >> 2 | c[6] << 4 | c[7] << 10);
  }
}

// kSmall: one vector a thread, of kCount groups; else up to kCount vectors of one group.
template <class T, bool kStochastic, bool kSmall>
__global__ void __launch_bounds__(kSmall ? 128 : kMaxBlock)
    quantize_teams(const __grid_constant__ Rows op, std::int64_t groups, int vectors,
                   int team_log2) {
  constexpr int kCount = (kSmall ? 4 : 8) / (sizeof(T) / 2);
  extern __shared__ uint4 stage_16[];
  const int lane = threadIdx.x & ((1 << team_log2) - 1);
  const int team = threadIdx.x >> team_log2;
  const int teams = blockDim.x >> team_log2;
  const int groups_of_block = kSmall ? teams * kCount : teams;
  const std::int64_t first = std::int64_t{blockIdx.x} * groups_of_block;
  std::uint8_t* out = op.rows + first * op.pitch;
  // At the same place within 16 bytes as it will have in memory.
  const auto misplaced = static_cast<int>(reinterpret_cast<std::uintptr_t>(out) % 16);
  std::uint8_t* stage = reinterpret_cast<std::uint8_t*>(stage_16) + misplaced;
  const int pitch = static_cast<int>(op.pitch);

  Eight<T> raw[kCount];
  bool active[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int vector = kSmall ? lane : lane + (i << team_log2);
    const std::int64_t group = first + team + (kSmall ? i * teams : 0);
    active[i] = vector < vectors && group < groups;
    if (active[i]) {
      raw[i].load(static_cast<const T*>(op.input) + group * op.group_size + vector * 8);
    }
  }
  std::uint32_t most[kCount] = {};
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    SeenVectors<T, true> seen;
    if (active[i]) {
#pragma unroll
      for (int k = 0; k < 8 / Eight<T>::kWidth; ++k) seen.see(raw[i].part[k]);
    }
    const std::uint32_t high = seen.words().high;
    most[kSmall ? i : 0] = max(most[kSmall ? i : 0], high);
  }
#pragma unroll
  for (int i = 0; i < (kSmall ? kCount : 1); ++i) {
    Words words;
    words.high = most[i];
    most[i] = team_max<true>(words, team_log2).high;
  }
  float factor = 0.0f;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int vector = kSmall ? lane : lane + (i << team_log2);
    const int local = team + (kSmall ? i * teams : 0);
    if (kSmall || i == 0) factor = factor_of(op.codec, most[kSmall ? i : 0]);
    if (!active[i]) continue;
    std::uint8_t* row = stage + local * pitch;
    float x[8];
    std::uint32_t code[8];
    raw[i].widen(x);
    Philox random{};
    if (kStochastic) {
      random = random_of(op.random, (first + local) * op.group_size + vector * 8);
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      code[k] =
          encode<kStochastic>(op.codec, x[k] * factor, kStochastic ? uniform(random, k) : 0.0f);
    }
    put_eight(row + vector * op.codec.bits, op.codec.bits, code);
    if (lane == 0 && (kSmall || i == 0)) {
      const std::uint32_t scale =
          __float_as_uint(__fdiv_rn(__uint_as_float(most[kSmall ? i : 0]), op.codec.largest));
      auto* halves = reinterpret_cast<std::uint16_t*>(row + pitch - 4);
      halves[0] = static_cast<std::uint16_t>(scale);
      halves[1] = static_cast<std::uint16_t>(scale >> 16);
    }
  }
  __syncthreads();

  const auto count =
      static_cast<int>(min(static_cast<std::int64_t>(groups_of_block), groups - first));
  const int bytes = count * pitch;
  const int head = min((16 - misplaced) % 16, bytes);
  const int middle = (bytes - head) / 16;
  const int tail = bytes - head - 16 * middle;
  const auto thread = static_cast<int>(threadIdx.x);
  if (thread < head) out[thread] = stage[thread];
  if (thread < tail) out[head + 16 * middle + thread] = stage[head + 16 * middle + thread];
  for (int i = thread; i < middle; i += static_cast<int>(blockDim.x)) {
    store_16(out + head + 16 * i, *reinterpret_cast<const uint4*>(stage + head + 16 * i));
  }
}

// Any size and alignment: a block a group, element by element, the group read twice.
template <class T>
__global__ void __launch_bounds__(256)
    quantize_any(const __grid_constant__ Rows op, std::int64_t groups, bool stochastic) {
  // As many elements as whole bytes hold.
  const int unit = op.codec.bits == 8 ? 1 : op.codec.bits == 6 ? 4 : 2;
  for (std::int64_t group = blockIdx.x; group < groups; group += gridDim.x) {
    const std::int64_t first = group * op.group_size;
    const T* input = static_cast<const T*>(op.input) + first;
    std::uint8_t* row = op.rows + group * op.pitch;
    SeenFloats<true> seen;
    for (std::int64_t i = threadIdx.x; i < op.group_size; i += 256) seen.see(widen(input[i]));
    const std::uint32_t most = team_max<true>(seen.words, 8).high;
    const float factor = factor_of(op.codec, most);
    for (std::int64_t i = std::int64_t{threadIdx.x} * unit; i < op.group_size; i += 256 * unit) {
      std::uint64_t packed = 0;
      for (int k = 0; k < unit; ++k) {
        const float y = widen(input[i + k]) * factor;
        std::uint32_t code;
        if (stochastic) {
          const std::int64_t at = first + i + k;
          const Philox random = random_of(op.random, at);
          const float u = static_cast<float>(sixteen_bits(random, static_cast<int>(at % 8)));
          code = encode<true>(op.codec, y, u * 0x1p-16f);
        } else {
          code = encode<false>(op.codec, y, 0.0f);
        }
        packed |= std::uint64_t{code} << (k * op.codec.bits);
      }
      for (int k = 0; k < unit * op.codec.bits / 8; ++k) {
        row[i * op.codec.bits / 8 + k] = static_cast<std::uint8_t>(packed >> (8 * k));
      }
    }
    if (threadIdx.x < 4) {
      const std::uint32_t scale =
          __float_as_uint(__fdiv_rn(__uint_as_float(most), op.codec.largest));
      row[op.pitch - 4 + threadIdx.x] = static_cast<std::uint8_t>(scale >> (8 * threadIdx.x));
    }
    __syncthreads();  // team_max's shared words are used again.
  }
}

template <class T, bool kStochastic>
void launch(const FpQuantizeCall& call, cudaStream_t stream) {
  const Rows op{call.input,      call.rows,
                call.group_size, fp_row_bytes(call.group_size, call.format),
                call.random,     Codec(call.format)};
  const bool aligned = is_aligned(call.input, 16) && is_aligned(call.rows, 4);
  constexpr int kPerSize = sizeof(T) / 2;
  const Teams teams =
      lay_out_teams(call.groups, call.group_size, 8, aligned, 8 / kPerSize, 4 / kPerSize);
  if (!teams.fits) {
    const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(call.groups, 1 << 20));
    quantize_any<T><<<blocks, 256, 0, stream>>>(op, call.groups, kStochastic);
    check_launch("fp_quantize");
    return;
  }
  const auto kernel = teams.one_vector ? quantize_teams<T, kStochastic, true>
                                       : quantize_teams<T, kStochastic, false>;
  const std::int64_t groups_of_block =
      (teams.block >> teams.team_log2) * (teams.one_vector ? 4 / kPerSize : 1);
  const auto shared = static_cast<std::size_t>(groups_of_block * op.pitch + 16);
  if (shared > 48 * 1024) {
    const cudaError_t status = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
    if (status != cudaSuccess) {
      cudaGetLastError();
      throw std::runtime_error(std::string("ds::fp_quantize: ") + cudaGetErrorString(status));
    }
  }
  kernel<<<static_cast<unsigned>(teams.blocks), teams.block, shared, stream>>>(
      op, call.groups, static_cast<int>(call.group_size / 8), teams.team_log2);
  check_launch("fp_quantize");
}

}  // namespace
}  // namespace fp_quantizer

void fp_quantize(const FpQuantizeCall& call, void* stream) {
  using namespace fp_quantizer;
  if (!check(call)) return;
  with_type(call.dtype, [&](auto type) {
    using T = decltype(type);
    (call.stochastic ? launch<T, true> : launch<T, false>)(call, static_cast<cudaStream_t>(stream));
  });
}

}  // namespace ds

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
  // The highest bytes of elements 4·half to 4·half + 3.
  __device__ __forceinline__ std::uint32_t sign_bytes(int half) const {
    if constexpr (sizeof(T) == 4) {
      return high_bytes(part[half].x, part[half].y, part[half].z, part[half].w);
    } else {
      return half == 0 ? __byte_perm(part[0].x, part[0].y, 0x7531)
                       : __byte_perm(part[0].z, part[0].w, 0x7531);
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
// `code` is what encode() gives, `signs` have the sign of four elements each in the highest bit of
// their bytes.
__device__ __forceinline__ void put_eight(std::uint8_t* to, const Codec& c,
                                          const std::uint32_t (&code)[8], std::uint32_t signs_a,
                                          std::uint32_t signs_b) {
  auto* words = reinterpret_cast<std::uint32_t*>(to);
  if (c.bits == 12) {
    // Here a code starts at bit 16. Two a word, signs beneath the four bits that go.
    std::uint32_t pair[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t both = __byte_perm(code[2 * i], code[2 * i + 1], 0x7632);
      const std::uint32_t signs =
          __byte_perm(i < 2 ? signs_a : signs_b, 0, i % 2 == 0 ? 0x1404 : 0x3424);
      const std::uint32_t full = both | (signs >> 4 & 0x08000800u);
      pair[i] = (full & 0xfffu) | (full >> 4 & 0xfff000u);
    }
    words[0] = pair[0] | pair[1] << 24;
    words[1] = pair[1] >> 8 | pair[2] << 16;
    words[2] = pair[2] >> 16 | pair[3] << 8;
    return;
  }
  // A code to the lowest bits of its highest byte, and its sign above it.
  const int down = 8 - c.bits;
  const std::uint32_t k = c.to_byte;  // A multiplication, because shifts are what there is most of.
  const std::uint32_t a = high_bytes(code[0] * k, code[1] * k, code[2] * k, code[3] * k) |
                          (signs_a & 0x80808080u) >> down;
  const std::uint32_t b = high_bytes(code[4] * k, code[5] * k, code[6] * k, code[7] * k) |
                          (signs_b & 0x80808080u) >> down;
  if (c.bits == 8) {
    words[0] = a;
    words[1] = b;
  } else if (c.bits == 4) {
    words[0] = __byte_perm(a, b, 0x6420) | __byte_perm(a, b, 0x7531) << 4;
  } else {
    const auto packed = [](std::uint32_t x) {
      x = (x & 0x003f003fu) | (x >> 2 & 0x0fc00fc0u);
      return (x & 0xfffu) | (x >> 4 & 0xfff000u);
    };
    const std::uint32_t low = packed(a), high = packed(b);
    auto* halves = reinterpret_cast<std::uint16_t*>(to);
    halves[0] = static_cast<std::uint16_t>(low);
    halves[1] = static_cast<std::uint16_t>(low >> 16 | high << 8);
    halves[2] = static_cast<std::uint16_t>(high >> 8);
  }
}

// kSmall: one vector a thread, of kCount groups; else up to kCount vectors of one group.
template <class T, bool kStochastic, bool kSmall>
__global__ void __launch_bounds__(kSmall ? 128 : kMaxBlock, kSmall ? 12 : 1)
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

  RandomSource source;
  if (kStochastic) {
    source.seed = op.random.device ? __ldg(op.random.device) : op.random.seed;
    source.offset = op.random.device ? __ldg(op.random.device + 1) : op.random.offset;
  }
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
  // The divisions of several groups at once, one a lane, where the team has as many lanes.
  const bool shared_work = kSmall && team_log2 >= 2;
  std::uint32_t mine = most[0];
#pragma unroll
  for (int i = 1; i < kCount; ++i) {
    if (shared_work && lane % kCount == i) mine = most[i];
  }
  const float my_factor = factor_of(op.codec, mine);
  const std::uint32_t my_scale =
      __float_as_uint(__fdiv_rn(__uint_as_float(mine), op.codec.largest));
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int vector = kSmall ? lane : lane + (i << team_log2);
    const int local = team + (kSmall ? i * teams : 0);
    float factor = my_factor;
    if (shared_work) {
      factor =
          __shfl_sync(0xffffffffu, my_factor, (threadIdx.x % 32 & ~((1 << team_log2) - 1)) + i);
    } else if (kSmall && i > 0) {
      factor = factor_of(op.codec, most[i]);
    }
    // The scale of group i: by the lane that divided for it, or the first.
    const bool writes = shared_work ? lane == i : lane == 0 && (kSmall || i == 0);
    if (writes && first + local < groups) {
      const std::uint32_t scale =
          shared_work || i == 0
              ? my_scale
              : __float_as_uint(__fdiv_rn(__uint_as_float(most[kSmall ? i : 0]), op.codec.largest));
      auto* halves = reinterpret_cast<std::uint16_t*>(stage + local * pitch + pitch - 4);
      halves[0] = static_cast<std::uint16_t>(scale);
      halves[1] = static_cast<std::uint16_t>(scale >> 16);
    }
    if (!active[i]) continue;
    std::uint8_t* row = stage + local * pitch;
    float x[8];
    std::uint32_t code[8] = {};
    raw[i].widen(x);
    Philox random{};
    if (kStochastic) {
      random = random_of(source, (first + local) * op.group_size + vector * 8);
    }
    const bool finite = most[kSmall ? i : 0] < 0x7f800000u;
    if (finite) {
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        code[k] = encode<kStochastic>(op.codec, x[k] * factor,
                                      kStochastic ? above_128(random, k) - 128.0f : 0.0f);
      }
    }
    put_eight(row + vector * op.codec.bits, op.codec, code, finite ? raw[i].sign_bytes(0) : 0u,
              finite ? raw[i].sign_bytes(1) : 0u);
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
    __stcs(reinterpret_cast<uint4*>(out + head + 16 * i),
           *reinterpret_cast<const uint4*>(stage + head + 16 * i));
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
    const std::uint32_t most = team_max<true>(seen.words(), 8).high;
    const float factor = factor_of(op.codec, most);
    for (std::int64_t i = std::int64_t{threadIdx.x} * unit; i < op.group_size; i += 256 * unit) {
      std::uint64_t packed = 0;
      for (int k = 0; k < unit; ++k) {
        const float y = widen(input[i + k]) * factor;
        std::uint32_t code = 0;
        if (stochastic) {
          const std::int64_t at = first + i + k;
          const Philox random = random_of(op.random, at);
          const float u = static_cast<float>(sixteen_bits(random, static_cast<int>(at % 8)));
          code = encode<true>(op.codec, y, u * 0x1p-16f);
        } else {
          code = encode<false>(op.codec, y, 0.0f);
        }
        code = code >> (23 - op.codec.mantissa) | __float_as_uint(y) >> 31 << (op.codec.bits - 1);
        if (most >= 0x7f800000u) code = 0;
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
  if (!teams.fits || teams.chunks > 1) {
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

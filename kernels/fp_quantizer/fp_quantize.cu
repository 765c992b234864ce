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

// The codec's numbers of one format, for the compiler: with them in memory a code took 1.7 times as
// many instructions.
template <int kBits_, int kMantissa_>
struct Format {
  static constexpr int kBits = kBits_, kMantissa = kMantissa_;
  static constexpr int kExponentBits = kBits - 1 - kMantissa;
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  // Bits of the f32 of a power of two, and a step of exponents.
  static constexpr std::uint32_t power(int exponent) {
    return static_cast<std::uint32_t>(127 + exponent) << 23;
  }
  static constexpr std::uint32_t kNormal = power(1 - kBias);
  static constexpr std::uint32_t kRound = static_cast<std::uint32_t>(23 - kMantissa) << 23;
  static constexpr std::uint32_t kLargest =
      power((1 << kExponentBits) - 1 - kBias) + ((1u << kMantissa) - 1 << (23 - kMantissa));

  __device__ __forceinline__ static float unscale() {
    // 2^(bias - 127) is subnormal with a small bias.
    return __uint_as_float(kBias > 0 ? static_cast<std::uint32_t>(kBias) << 23 : 1u << 22);
  }

  // As encode() and encode_stochastic() of codec.cuh.
  __device__ __forceinline__ static std::uint32_t nearest(float y) {
    const float normal = __uint_as_float(kNormal);
    const std::uint32_t power = __float_as_uint(fmaxf(fabsf(y), normal)) & 0x7f800000u;
    // Powers of two: the product is a sum of exponents.
    const float shift = __uint_as_float(power + kRound);
    return __float_as_uint(((fabsf(y) + shift) - shift) * unscale());
  }
  __device__ __forceinline__ static std::uint32_t stochastic(float y, std::uint32_t random16) {
    if (kMantissa == 7) {
      const float largest = __uint_as_float(kLargest);
      y = fmaxf(fminf(y, largest), -largest);
    }
    return __float_as_uint(y * unscale()) + random16 * (1u << (7 - kMantissa));
  }
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

__device__ __forceinline__ std::uint32_t random_half(const Philox& random, int i) {
  return __byte_perm(random.word[i / 2], 0, i % 2 == 0 ? 0x4410 : 0x4432);
}

// The upper halves of two numbers with codes from bit 23 - mantissa on, and of their signs.
struct Two {
  std::uint32_t codes, signs;
};
template <class F, bool kStochastic>
__device__ __forceinline__ Two two_codes(const float* x, float factor, const Philox& random,
                                         int first) {
  const float y[2] = {x[0] * factor, x[1] * factor};
  Two two;
  if (kStochastic) {
    two.codes = __byte_perm(F::stochastic(y[0], random_half(random, first)),
                            F::stochastic(y[1], random_half(random, first + 1)), 0x7632);
    two.signs = two.codes;
  } else {
    two.codes = __byte_perm(F::nearest(y[0]), F::nearest(y[1]), 0x7632);
    two.signs = __byte_perm(__float_as_uint(y[0]), __float_as_uint(y[1]), 0x7632);
  }
  return two;
}

// Eight codes to shared memory; 8·bits/8 bytes, at a multiple of 4 bytes, or of 2 with 6 bits.
template <class F, bool kStochastic>
__device__ __forceinline__ void put_eight(std::uint8_t* to, const float (&x)[8], float factor,
                                          const Philox& random) {
  auto* words = reinterpret_cast<std::uint32_t*>(to);
  Two two[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    two[i] = two_codes<F, kStochastic>(x + 2 * i, factor, random, 2 * i);
  }
  if constexpr (F::kBits == 12) {
    // Here a code starts at bit 16. Two a word, signs beneath the four bits that go.
    std::uint32_t pair[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t full = (two[i].codes & 0x07ff07ffu) | (two[i].signs >> 4 & 0x08000800u);
      pair[i] = (full & 0xfffu) | (full >> 4 & 0xfff000u);
    }
    words[0] = pair[0] | pair[1] << 24;
    words[1] = pair[1] >> 8 | pair[2] << 16;
    words[2] = pair[2] >> 16 | pair[3] << 8;
  } else {
    std::uint32_t of_four[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // A code to the beginning of the higher byte, where the lower half's sign does not come, and
      // its sign above it. A multiplication, because shifts are what there is most of.
      constexpr std::uint32_t k = 2u << F::kMantissa;
      constexpr std::uint32_t kByteMask = ((1u << (F::kBits - 1)) - 1) * 0x01010101u;
      const Two low = two[2 * i], high = two[2 * i + 1];
      of_four[i] = (__byte_perm(low.codes * k, high.codes * k, 0x7531) & kByteMask) |
                   (__byte_perm(low.signs, high.signs, 0x7531) & 0x80808080u) >> (8 - F::kBits);
    }
    const std::uint32_t a = of_four[0], b = of_four[1];
    if constexpr (F::kBits == 8) {
      words[0] = a;
      words[1] = b;
    } else if constexpr (F::kBits == 4) {
      words[0] = __byte_perm(a, b, 0x6420) | __byte_perm(a, b, 0x7531) << 4;
    } else {
      const auto packed = [](std::uint32_t four) {
        four = (four & 0x003f003fu) | (four >> 2 & 0x0fc00fc0u);
        return (four & 0xfffu) | (four >> 4 & 0xfff000u);
      };
      const std::uint32_t low = packed(a), high = packed(b);
      auto* halves = reinterpret_cast<std::uint16_t*>(to);
      halves[0] = static_cast<std::uint16_t>(low);
      halves[1] = static_cast<std::uint16_t>(low >> 16 | high << 8);
      halves[2] = static_cast<std::uint16_t>(high >> 8);
    }
  }
}

// A block's rows, put together in shared memory at the same place within 16 bytes as they will have
// in memory.
class Stage {
 public:
  __device__ Stage(const Rows& op, std::int64_t first_group, uint4* memory)
      : out_(op.rows + first_group * op.pitch),
        misplaced_(static_cast<int>(reinterpret_cast<std::uintptr_t>(out_) % 16)),
        rows_(reinterpret_cast<std::uint8_t*>(memory) + misplaced_),
        pitch_(static_cast<int>(op.pitch)) {}

  __device__ std::uint8_t* row(int i) const { return rows_ + i * pitch_; }
  __device__ void put_scale(int i, std::uint32_t scale) const {
    auto* halves = reinterpret_cast<std::uint16_t*>(row(i) + pitch_ - 4);
    halves[0] = static_cast<std::uint16_t>(scale);
    halves[1] = static_cast<std::uint16_t>(scale >> 16);
  }
  // By all threads of the block.
  __device__ void flush(int rows) const {
    __syncthreads();
    const int bytes = rows * pitch_;
    const int head = min((16 - misplaced_) % 16, bytes);
    const int middle = (bytes - head) / 16;
    const int tail = bytes - head - 16 * middle;
    const auto thread = static_cast<int>(threadIdx.x);
    if (thread < head) out_[thread] = rows_[thread];
    if (thread < tail) out_[head + 16 * middle + thread] = rows_[head + 16 * middle + thread];
    for (int i = thread; i < middle; i += static_cast<int>(blockDim.x)) {
      __stcs(reinterpret_cast<uint4*>(out_ + head + 16 * i),
             *reinterpret_cast<const uint4*>(rows_ + head + 16 * i));
    }
  }

 private:
  std::uint8_t* out_;
  int misplaced_;
  std::uint8_t* rows_;
  int pitch_;
};

// With a scale that is not finite no code could mean anything.
__device__ __forceinline__ bool is_lost(std::uint32_t most) {
  return most >= 0x7f800000u;
}
template <class F>
__device__ __forceinline__ void put_eight_zeros(std::uint8_t* to) {
  auto* halves = reinterpret_cast<std::uint16_t*>(to);
  for (int k = 0; k < F::kBits / 2; ++k) halves[k] = 0;
}

template <bool kStochastic>
__device__ __forceinline__ RandomSource read_source(const RandomSource& source) {
  if (!kStochastic) return {};
  return {source.device ? __ldg(source.device) : source.seed,
          source.device ? __ldg(source.device + 1) : source.offset, nullptr};
}

__device__ __forceinline__ std::uint32_t scale_bits(const Codec& codec, std::uint32_t most) {
  return __float_as_uint(__fdiv_rn(__uint_as_float(most), codec.largest));
}

// One group a team; a thread holds up to kCount vectors of it.
template <class T, class F, bool kStochastic>
__global__ void __launch_bounds__(kMaxBlock, 1)
    quantize_teams(const __grid_constant__ Rows op, std::int64_t groups, int vectors,
                   int team_log2) {
  constexpr int kCount = 8 / (sizeof(T) / 2);
  extern __shared__ uint4 stage_16[];
  const int step = 1 << team_log2;
  const int lane = static_cast<int>(threadIdx.x) & (step - 1);
  const int team = static_cast<int>(threadIdx.x) >> team_log2;
  const int teams = static_cast<int>(blockDim.x) >> team_log2;
  const std::int64_t first = std::int64_t{blockIdx.x} * teams;
  const std::int64_t group = first + team;
  const Stage stage(op, first, stage_16);
  const int mine = group < groups ? (vectors - lane + step - 1) >> team_log2 : 0;
  const std::int64_t first_vector = group * vectors + lane;
  const T* from = static_cast<const T*>(op.input) + first_vector * 8;
  Eight<T> raw[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (i < mine) raw[i].load(from + i * (8 << team_log2));
  }
  SeenVectors<T, true> seen;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (i >= mine) break;
#pragma unroll
    for (int k = 0; k < 8 / Eight<T>::kWidth; ++k) seen.see(raw[i].part[k]);
  }
  const std::uint32_t most = team_max<true>(seen.words(), team_log2).high;
  if (lane == 0 && group < groups) stage.put_scale(team, scale_bits(op.codec, most));
  std::uint8_t* to = stage.row(team) + lane * F::kBits;
  if (is_lost(most)) {
    for (int i = 0; i < mine; ++i) put_eight_zeros<F>(to + i * (F::kBits << team_log2));
  } else {
    const float factor = factor_of(op.codec, most);
    const RandomSource source = read_source<kStochastic>(op.random);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i >= mine) break;
      float x[8];
      raw[i].widen(x);
      Philox random{};
      if (kStochastic) random = random_of(source, (first_vector + i * step) * 8);
      put_eight<F, kStochastic>(to + i * (F::kBits << team_log2), x, factor, random);
    }
  }
  stage.flush(static_cast<int>(min(std::int64_t{teams}, groups - first)));
}

// Small groups: a thread has one vector of each of kCount groups.
template <class T, class F, bool kStochastic>
__global__ void __launch_bounds__(128, 12)
    quantize_small(const __grid_constant__ Rows op, std::int64_t groups, int vectors,
                   int team_log2) {
  constexpr int kCount = 4 / (sizeof(T) / 2);
  extern __shared__ uint4 stage_16[];
  const int lane = static_cast<int>(threadIdx.x) & ((1 << team_log2) - 1);
  const int team = static_cast<int>(threadIdx.x) >> team_log2;
  const int teams = static_cast<int>(blockDim.x) >> team_log2;
  const std::int64_t first = std::int64_t{blockIdx.x} * teams * kCount;
  const Stage stage(op, first, stage_16);
  const RandomSource source = read_source<kStochastic>(op.random);
  Eight<T> raw[kCount];
  bool active[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const std::int64_t group = first + team + i * teams;
    active[i] = lane < vectors && group < groups;
    if (active[i]) {
      raw[i].load(static_cast<const T*>(op.input) + group * op.group_size + lane * 8);
    }
  }
  std::uint32_t most[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    SeenVectors<T, true> seen;
    if (active[i]) {
#pragma unroll
      for (int k = 0; k < 8 / Eight<T>::kWidth; ++k) seen.see(raw[i].part[k]);
    }
    most[i] = team_max<true>(seen.words(), team_log2).high;
  }
  // The divisions of several groups at once, one a lane, where the team has as many lanes.
  const bool shared_work = team_log2 >= 2;
  std::uint32_t mine = most[0];
#pragma unroll
  for (int i = 1; i < kCount; ++i) {
    if (shared_work && lane % kCount == i) mine = most[i];
  }
  const float my_factor = factor_of(op.codec, mine);
  const std::uint32_t my_scale = scale_bits(op.codec, mine);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int local = team + i * teams;
    float factor = my_factor;
    if (shared_work) {
      factor =
          __shfl_sync(0xffffffffu, my_factor, (threadIdx.x % 32 & ~((1 << team_log2) - 1)) + i);
    } else if (i > 0) {
      factor = factor_of(op.codec, most[i]);
    }
    // The scale of group i: by the lane that divided for it, or the first.
    if (lane == (shared_work ? i : 0) && first + local < groups) {
      stage.put_scale(local, shared_work || i == 0 ? my_scale : scale_bits(op.codec, most[i]));
    }
    if (!active[i]) continue;
    std::uint8_t* to = stage.row(local) + lane * F::kBits;
    if (is_lost(most[i])) {
      put_eight_zeros<F>(to);
      continue;
    }
    float x[8];
    raw[i].widen(x);
    Philox random{};
    if (kStochastic) random = random_of(source, (first + local) * op.group_size + lane * 8);
    put_eight<F, kStochastic>(to, x, factor, random);
  }
  stage.flush(static_cast<int>(min(std::int64_t{teams} * kCount, groups - first)));
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
          code = encode_stochastic(op.codec, y, sixteen_bits(random, static_cast<int>(at % 8))) &
                 0x7fffffffu;
        } else {
          code = encode(op.codec, y);
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

template <class T, bool kStochastic, class F>
void launch_teams(const FpQuantizeCall& call, const Rows& op, const Teams& teams,
                  cudaStream_t stream) {
  const auto kernel =
      teams.one_vector ? quantize_small<T, F, kStochastic> : quantize_teams<T, F, kStochastic>;
  constexpr int kPerSize = sizeof(T) / 2;
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
}

template <class T, bool kStochastic>
void launch(const FpQuantizeCall& call, cudaStream_t stream) {
  const Rows op{call.input,      call.rows,
                call.group_size, fp_row_bytes(call.group_size, call.format),
                call.random,     Codec(call.format)};
  const bool aligned = is_aligned(call.input, 16) && is_aligned(call.rows, 4);
  constexpr int kPerSize = sizeof(T) / 2;
  // Several groups a thread only where two threads, each with all it can hold, would be too many.
  const int at_once = call.group_size > 64 ? 0 : 4 / kPerSize;
  const Teams teams =
      lay_out_teams(call.groups, call.group_size, 8, aligned, 8 / kPerSize, at_once);
  if (!teams.fits || teams.chunks > 1) {
    const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(call.groups, 1 << 20));
    quantize_any<T><<<blocks, 256, 0, stream>>>(op, call.groups, kStochastic);
  } else {
    const auto with = [&](auto format) {
      launch_teams<T, kStochastic, decltype(format)>(call, op, teams, stream);
    };
    if (call.format.bits == 12) with(Format<12, 7>());
    if (call.format.bits == 8 && call.format.mantissa == 3) with(Format<8, 3>());
    if (call.format.bits == 8 && call.format.mantissa == 2) with(Format<8, 2>());
    if (call.format.bits == 6) with(Format<6, 2>());
    if (call.format.bits == 4) with(Format<4, 1>());
  }
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

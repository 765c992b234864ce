// Groups of any size and alignment: see any_groups.cuh. Warps take chunks of a group element by
// element, coalesced.

#include "any_groups.cuh"

namespace ds::quantizer {
namespace {

__device__ __forceinline__ float one_code(const std::uint8_t* codes, std::int64_t i, int bits) {
  if (bits == 8) return static_cast<float>(static_cast<std::int8_t>(codes[i]));
  const int nibble = codes[i / 2] >> (i % 2 == 0 ? 4 : 0) & 0x0f;
  return static_cast<float>(nibble < 8 ? nibble : nibble - 16);
}

struct AnyParams {
  float scale, inverse, offset, low, high;
  bool symmetric;

  __device__ AnyParams(const AnyCall& call, Words words) : symmetric(call.symmetric) {
    if (symmetric) {
      const ScaleOf<true> p(words, call.bits);
      scale = p.scale;
      inverse = p.inverse;
      offset = 0.0f;
    } else {
      const ScaleOf<false> p(words, call.bits);
      scale = p.scale;
      inverse = p.inverse;
      offset = p.offset;
    }
    low = -static_cast<float>(1 << (call.bits - 1));
    high = -low - 1.0f;
  }
  __device__ __forceinline__ float centered(float x) const { return symmetric ? x : x - offset; }
  __device__ __forceinline__ float to_code_space(float x) const {
    return symmetric ? x * scale : (x - offset) * scale;
  }
  __device__ __forceinline__ float to_value(float code) const {
    const float product = code * inverse;
    return symmetric ? product : product + offset;
  }
};

// What is quantized. `at`: its index in the input or the sum, `to`: in the output. T is the type of
// the input, or of the error. kPlain: a tensor without error feedback, rounded to nearest.
template <class T, bool kPlain>
__device__ __forceinline__ float value(const AnyCall& call, std::int64_t at, std::int64_t to) {
  if (kPlain) return widen(static_cast<const T*>(call.input)[at]);
  float x;
  if (call.source == AnyCall::kSum) {
    x = 0.0f;
    const std::int64_t in_group = at / (call.size / call.in_groups);
    for (std::int64_t t = 0; t < call.tensors; ++t) {
      const float code = one_code(call.in_codes, t * call.size + at, call.bits);
      const std::int64_t g = t * call.in_groups + in_group;
      x = call.symmetric ? __fmaf_rn(code, call.in_params[g], x)
                         : x + __fmaf_rn(code, call.in_params[2 * g], call.in_params[2 * g + 1]);
    }
  } else {
    x = widen(static_cast<const T*>(call.input)[at]);
  }
  return call.error == nullptr ? x : x + widen(static_cast<const T*>(call.error)[to]);
}

// Rounds one element and gives its code's low bits.
template <class T, bool kPlain>
__device__ __forceinline__ std::uint32_t round_one(const AnyCall& call, const AnyParams& p,
                                                   std::int64_t at, std::int64_t to) {
  const float x = value<T, kPlain>(call, at, to);
  float code;
  if (!kPlain && call.stochastic) {
    const Philox random = random_of(call.random, at);
    const float u =
        128.0f + static_cast<float>(sixteen_bits(random, static_cast<int>(at % 8))) * 0x1p-16f;
    code = floorf(__fmaf_rn(p.centered(x), p.scale, u)) - 128.0f;
    code = fmaxf(fminf(code, p.high), p.low) + 0.0f;
  } else {
    code = (fmaxf(fminf(p.to_code_space(x), p.high), p.low) + kMagic) - kMagic;
  }
  if (call.codes == nullptr) {
    static_cast<T*>(const_cast<void*>(call.input))[to] = narrow<T>(p.to_value(code));
  } else if (!kPlain && call.error != nullptr) {
    T* error = static_cast<T*>(call.error) + to;
    *error = narrow<T>(call.beta * widen(*error) + call.rest * (x - p.to_value(code)));
  }
  return static_cast<std::uint32_t>(static_cast<std::int32_t>(code));
}

__device__ __forceinline__ void put_params(const AnyCall& call, std::int64_t group,
                                           const AnyParams& p) {
  if (call.params == nullptr) return;
  call.params[call.symmetric ? group : 2 * group] = p.inverse;
  if (!call.symmetric) call.params[2 * group + 1] = p.offset;
}

__device__ __forceinline__ Words stored_words(const AnyCall& call, std::int64_t group) {
  Words words;
  words.high = call.words[call.symmetric ? group : 2 * group];
  if (!call.symmetric) words.low = call.words[2 * group + 1];
  return words;
}

template <class T, bool kPlain, bool kSymmetric>
__device__ __forceinline__ Words measured(const AnyCall& call, std::int64_t from, std::int64_t to,
                                          int count) {
  SeenFloats<kSymmetric> seen;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x % 32); i < count; i += 32) {
    seen.see(value<T, kPlain>(call, from + i, to + i));
  }
  return team_max<kSymmetric>(seen.words(), 5);
}

template <class T, bool kPlain>
__global__ void __launch_bounds__(256)
    any_groups(const __grid_constant__ AnyCall call, std::int64_t chunks, int phase) {
  const int lane = threadIdx.x % 32;
  const std::int64_t warps = std::int64_t{gridDim.x} * (blockDim.x / 32);
  for (std::int64_t work = std::int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32;
       work < call.groups * chunks; work += warps) {
    const std::int64_t group = chunks == 1 ? work : work / chunks;
    const std::int64_t place = call.places(group);
    const std::int64_t begin = chunks == 1 ? 0 : work % chunks * kChunk;
    const std::int64_t from = group * call.group_size + begin;
    const std::int64_t to = place * call.group_size + begin;
    const int count = static_cast<int>(min(kChunk, call.group_size - begin));
    Words words;
    if (phase & kMeasure) {
      words = call.symmetric ? measured<T, kPlain, true>(call, from, to, count)
                             : measured<T, kPlain, false>(call, from, to, count);
      if (phase == kMeasure && lane == 0) {
        atomicMax(call.words + (call.symmetric ? place : 2 * place), words.high);
        if (!call.symmetric) atomicMax(call.words + 2 * place + 1, words.low);
      }
    } else {
      words = stored_words(call, place);
    }
    if (phase & kRound) {
      const AnyParams p(call, words);
      if (call.codes != nullptr && call.bits == 4) {
        for (int i = 2 * lane; i < count; i += 64) {
          const std::uint32_t first = round_one<T, kPlain>(call, p, from + i, to + i);
          const std::uint32_t second = round_one<T, kPlain>(call, p, from + i + 1, to + i + 1);
          call.codes[(to + i) / 2] = static_cast<std::uint8_t>(first << 4 | (second & 0x0f));
        }
      } else {
#pragma unroll 4
        for (int i = lane; i < count; i += 32) {
          const std::uint32_t code = round_one<T, kPlain>(call, p, from + i, to + i);
          if (call.codes != nullptr) call.codes[to + i] = static_cast<std::uint8_t>(code);
        }
      }
      if (phase == kBoth && lane == 0) put_params(call, place, p);
    }
  }
}

// After two launches: what waited as words becomes parameters.
__global__ void __launch_bounds__(256) finish_params(const __grid_constant__ AnyCall call) {
  for (std::int64_t g = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; g < call.groups;
       g += std::int64_t{gridDim.x} * blockDim.x) {
    put_params(call, g, AnyParams(call, stored_words(call, g)));
  }
}

unsigned blocks_of(std::int64_t work, std::int64_t a_block) {
  return static_cast<unsigned>(std::min<std::int64_t>((work + a_block - 1) / a_block, 1 << 20));
}

}  // namespace

void launch_finish(const char* name, const AnyCall& call, cudaStream_t stream) {
  finish_params<<<blocks_of(call.groups, 256), 256, 0, stream>>>(call);
  check_launch(name);
}

void launch_any(const char* name, const AnyCall& call, cudaStream_t stream) {
  const std::int64_t chunks = (call.group_size + kChunk - 1) / kChunk;
  const unsigned blocks = blocks_of(call.groups * chunks, 8);
  with_type(call.dtype, [&](auto type) {
    using T = decltype(type);
    const bool plain = call.source == AnyCall::kTensor && !call.stochastic;
    const auto kernel = plain ? any_groups<T, true> : any_groups<T, false>;
    if (chunks == 1) {
      kernel<<<blocks, 256, 0, stream>>>(call, chunks, kBoth);
    } else {
      clear_words(name, call.words, call.groups, call.symmetric, stream);
      kernel<<<blocks, 256, 0, stream>>>(call, chunks, kMeasure);
      kernel<<<blocks, 256, 0, stream>>>(call, chunks, kRound);
      if (call.params != nullptr) launch_finish(name, call, stream);
    }
  });
  check_launch(name);
}

}  // namespace ds::quantizer

// Groups of any size and alignment: see any_groups.cuh. Warps take chunks of a group element by
// element, coalesced; reads once more than the floor for groups of more than one chunk.

#include "any_groups.cuh"

namespace ds::quantizer {
namespace {

enum Phase : int { kMeasure = 1, kRound = 2, kBoth = 3 };

__device__ __forceinline__ float read(const void* from, DType dtype, std::int64_t i) {
  if (dtype == DType::f32) return static_cast<const float*>(from)[i];
  if (dtype == DType::f16) return widen(static_cast<const f16*>(from)[i]);
  return widen(static_cast<const bf16*>(from)[i]);
}

__device__ __forceinline__ void write(void* to, DType dtype, std::int64_t i, float x) {
  if (dtype == DType::f32) static_cast<float*>(to)[i] = x;
  if (dtype == DType::f16) static_cast<f16*>(to)[i] = narrow<f16>(x);
  if (dtype == DType::bf16) static_cast<bf16*>(to)[i] = narrow<bf16>(x);
}

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
  __device__ __forceinline__ float clamped(float x) const {
    const float y = symmetric ? x * scale : (x - offset) * scale;
    return fmaxf(fminf(y, high), low);
  }
  __device__ __forceinline__ float to_value(float code) const {
    const float product = code * inverse;
    return symmetric ? product : product + offset;
  }
};

// What is quantized. `at`: its index in the input or the sum, `to`: in the output.
__device__ __forceinline__ float value(const AnyCall& call, std::int64_t at, std::int64_t to) {
  if (call.source == AnyCall::kSum) {
    float sum = 0.0f;
    const std::int64_t in_group = at / (call.size / call.in_groups);
    for (std::int64_t t = 0; t < call.tensors; ++t) {
      const float code = one_code(call.in_codes, t * call.size + at, call.bits);
      const std::int64_t g = t * call.in_groups + in_group;
      sum += call.symmetric ? code * call.in_params[g]
                            : code * call.in_params[2 * g] + call.in_params[2 * g + 1];
    }
    return call.error == nullptr ? sum : sum + read(call.error, call.dtype, to);
  }
  const float x = read(call.input, call.dtype, at);
  return call.error == nullptr ? x : x + read(call.error, call.dtype, to);
}

// Rounds one element and gives its code's low bits.
__device__ __forceinline__ std::uint32_t round_one(const AnyCall& call, const AnyParams& p,
                                                   std::int64_t at, std::int64_t to) {
  const float x = value(call, at, to);
  float code = p.clamped(x);
  if (call.stochastic) {
    const std::uint64_t seed = call.random.device ? call.random.device[0] : call.random.seed;
    const std::uint64_t offset = call.random.device ? call.random.device[1] : call.random.offset;
    const Philox random = philox(seed, static_cast<std::uint64_t>(at) / 8, offset);
    const float u = static_cast<float>(sixteen_bits(random, static_cast<int>(at % 8))) * 0x1p-16f;
    code = fminf(floorf(code + u), p.high) + 0.0f;
  } else {
    code = (code + kMagic) - kMagic;
  }
  if (call.codes == nullptr) {
    write(const_cast<void*>(call.input), call.dtype, to, p.to_value(code));
  } else if (call.error != nullptr) {
    const float e = read(call.error, call.dtype, to);
    write(call.error, call.dtype, to, call.beta * e + call.rest * (x - p.to_value(code)));
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

__global__ void __launch_bounds__(256)
    any_groups(const __grid_constant__ AnyCall call, std::int64_t chunks, int phase) {
  const int lane = threadIdx.x % 32;
  const std::int64_t warps = std::int64_t{gridDim.x} * (blockDim.x / 32);
  for (std::int64_t work = std::int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32;
       work < call.groups * chunks; work += warps) {
    const std::int64_t group = work / chunks;
    const std::int64_t place = call.places(group);
    const std::int64_t from = group * call.group_size;
    const std::int64_t to = place * call.group_size;
    const std::int64_t begin = work % chunks * kChunk;
    const std::int64_t end = min(begin + kChunk, call.group_size);
    Words words;
    if (phase & kMeasure) {
      if (call.symmetric) {
        SeenFloats<true> seen;
#pragma unroll 4
        for (std::int64_t i = begin + lane; i < end; i += 32) {
          seen.see(value(call, from + i, to + i));
        }
        words = team_max<true>(seen.words, 5);
      } else {
        SeenFloats<false> seen;
#pragma unroll 4
        for (std::int64_t i = begin + lane; i < end; i += 32) {
          seen.see(value(call, from + i, to + i));
        }
        words = team_max<false>(seen.words, 5);
      }
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
#pragma unroll 2
        for (std::int64_t i = begin + 2 * lane; i < end; i += 64) {
          const std::uint32_t first = round_one(call, p, from + i, to + i);
          const std::uint32_t second = round_one(call, p, from + i + 1, to + i + 1);
          call.codes[(to + i) / 2] = static_cast<std::uint8_t>(first << 4 | (second & 0x0f));
        }
      } else {
#pragma unroll 4
        for (std::int64_t i = begin + lane; i < end; i += 32) {
          const std::uint32_t code = round_one(call, p, from + i, to + i);
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

}  // namespace

void launch_any(const char* name, const AnyCall& call, cudaStream_t stream) {
  const std::int64_t chunks = (call.group_size + kChunk - 1) / kChunk;
  const auto blocks_of = [](std::int64_t work, std::int64_t a_block) {
    return static_cast<unsigned>(std::min<std::int64_t>((work + a_block - 1) / a_block, 1 << 16));
  };
  const unsigned blocks = blocks_of(call.groups * chunks, 8);
  if (chunks == 1) {
    any_groups<<<blocks, 256, 0, stream>>>(call, chunks, kBoth);
    check_launch(name);
    return;
  }
  if (call.words == nullptr) refuse(name, "groups of this size need scratch memory");
  const std::size_t bytes = static_cast<std::size_t>(call.groups) * (call.symmetric ? 4 : 8);
  if (const cudaError_t status = cudaMemsetAsync(call.words, 0, bytes, stream);
      status != cudaSuccess) {
    throw std::runtime_error(std::string("ds::") + name + ": " + cudaGetErrorString(status));
  }
  any_groups<<<blocks, 256, 0, stream>>>(call, chunks, kMeasure);
  any_groups<<<blocks, 256, 0, stream>>>(call, chunks, kRound);
  if (call.params != nullptr) finish_params<<<blocks_of(call.groups, 256), 256, 0, stream>>>(call);
  check_launch(name);
}

}  // namespace ds::quantizer

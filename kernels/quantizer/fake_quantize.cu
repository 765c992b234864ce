// Fake quantization in place, to nearest or stochastic. Memory traffic: each value read and written
// once. A random number costs an eighth of a Philox call, and only where it is asked for.

#include "any_groups.cuh"
#include "group_kernel.cuh"

namespace ds {
namespace quantizer {
namespace {

template <class T, bool kIsSymmetric, bool kStochastic>
struct FakeOp {
  static constexpr int kWidth = VectorOf<T>::kWidth;
  static constexpr int kMost = 8;
  static constexpr int kAtOnce = 4;
  static constexpr bool kSymmetric = kIsSymmetric;
  using Raw = uint4;
  using Seen = SeenVectors<T, kSymmetric>;
  // Read once a group: where the randomness comes from may lie in memory.
  struct Params : ScaleOf<kSymmetric> {
    using ScaleOf<kSymmetric>::ScaleOf;
    RandomSource random;
  };

  T* values;
  std::int64_t group_size;
  int bits;
  float low, high;
  RandomSource random;

  template <int kCount>
  __device__ __forceinline__ void load(const std::int64_t (&group)[kCount],
                                       const int (&vector)[kCount], const bool (&active)[kCount],
                                       Raw (&raw)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (active[i]) raw[i] = load_16(values + group[i] * group_size + vector[i] * kWidth);
    }
  }
  __device__ __forceinline__ void see(const Raw& raw, Seen& seen) const {
    seen.see(raw);
  }
  __device__ __forceinline__ Words words(const Seen& seen) const {
    return seen.words();
  }
  __device__ __forceinline__ Params params_of(Words words) const {
    Params params(words, bits);
    if (kStochastic) {
      params.random.seed = random.device ? __ldg(random.device) : random.seed;
      params.random.offset = random.device ? __ldg(random.device + 1) : random.offset;
    }
    return params;
  }
  __device__ __forceinline__ std::int64_t place(std::int64_t group) const {
    return group;
  }

  __device__ __forceinline__ void store(std::int64_t group, int vector, const Raw& raw,
                                        const Params& p) const {
    const std::int64_t at = group * group_size + vector * kWidth;
    float x[kWidth];
    VectorOf<T>::widen(raw, x);
    Philox bits_of{};
    if (kStochastic) {
      bits_of = philox(p.random.seed, static_cast<std::uint64_t>(at) / 8, p.random.offset);
      if (kWidth == 4 && at % 8 != 0) {
        bits_of.word[0] = bits_of.word[2];
        bits_of.word[1] = bits_of.word[3];
      }
    }
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      float code;
      if (kStochastic) {
        // Adding the magic rounded down is floor.
        const float above = __fmaf_rn(p.centered(x[i]), p.scale, above_128(bits_of, i));
        code = fmaxf(fminf(__fadd_rd(above, kMagic) - (kMagic + 128.0f), high), low);
      } else {
        code =
            rounded < !kSymmetric && sizeof(T) == 4 > (p.to_code_space(x[i]), low, high) - kMagic;
      }
      x[i] = p.to_value(code);
    }
    store_16(values + at, VectorOf<T>::narrow(x));
  }
  __device__ __forceinline__ void store_params(std::int64_t, const Params&) const {}
};

AnyCall any_call(const FakeQuantizeCall& call) {
  AnyCall any;
  any.input = call.values;
  any.dtype = call.dtype;
  any.words = call.scratch;
  any.groups = call.groups;
  any.group_size = call.group_size;
  any.bits = call.bits;
  any.symmetric = call.symmetric;
  any.stochastic = call.stochastic;
  any.random = call.random;
  return any;
}

Teams teams_of(const FakeQuantizeCall& call) {
  const int width = call.dtype == DType::f32 ? 4 : 8;
  return lay_out_teams(call.groups, call.group_size, width, is_aligned(call.values, 16), 8, 4);
}

template <class T, bool kSymmetric, bool kStochastic>
void launch(const FakeQuantizeCall& call, const Teams& teams, cudaStream_t stream) {
  FakeOp<T, kSymmetric, kStochastic> op{};
  op.values = static_cast<T*>(call.values);
  op.group_size = call.group_size;
  op.bits = call.bits;
  op.low = -static_cast<float>(1 << (call.bits - 1));
  op.high = -op.low - 1.0f;
  op.random = call.random;
  launch_teams("fake_quantize", op, teams, call.groups, call.group_size, call.scratch, stream);
}

}  // namespace
}  // namespace quantizer

bool fake_quantize_needs_scratch(const FakeQuantizeCall& call) {
  const groups::Teams teams = quantizer::teams_of(call);
  return teams.fits ? teams.chunks > 1 : call.group_size > quantizer::kChunk;
}

void fake_quantize(const FakeQuantizeCall& call, void* stream_) {
  using namespace quantizer;
  if (!check(call)) return;
  const auto stream = static_cast<cudaStream_t>(stream_);
  const Teams teams = teams_of(call);
  if (!teams.fits) {
    launch_any("fake_quantize", any_call(call), stream);
    return;
  }
  with_type(call.dtype, [&](auto type) {
    using T = decltype(type);
    if (call.symmetric) {
      (call.stochastic ? launch<T, true, true> : launch<T, true, false>)(call, teams, stream);
    } else {
      (call.stochastic ? launch<T, false, true> : launch<T, false, false>)(call, teams, stream);
    }
  });
}

}  // namespace ds

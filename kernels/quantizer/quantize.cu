// Quantization of f32, f16 and bf16, swizzled where asked for, with and without error feedback.
// Memory traffic an element: the input's 4 or 2 bytes, bits/8 bytes of code; with error feedback
// twice the input's bytes more. Groups over threads: see group_kernel.cuh.

#include "any_groups.cuh"
#include "group_kernel.cuh"

namespace ds {
namespace quantizer {
namespace {

// What both ops know of the call.
struct Output {
  std::uint8_t* codes;
  float* params;
  std::int64_t group_size;
  int bits;
  float low, high;
  Places places;

  __device__ __forceinline__ std::int64_t place(std::int64_t group) const { return places(group); }
};

template <class T, bool kIsSymmetric>
struct QuantizeOp : Output {
  static constexpr int kWidth = VectorOf<T>::kWidth;
  static constexpr int kMost = 8;
  static constexpr int kAtOnce = 4;
  static constexpr bool kSymmetric = kIsSymmetric;
  using Raw = uint4;
  using Seen = SeenVectors<T, kSymmetric>;
  using Params = ScaleOf<kSymmetric>;

  const T* input;

  template <int kCount>
  __device__ __forceinline__ void load(const std::int64_t (&group)[kCount],
                                       const int (&vector)[kCount], const bool (&active)[kCount],
                                       Raw (&raw)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (active[i]) raw[i] = load_16(input + group[i] * group_size + vector[i] * kWidth);
    }
  }
  __device__ __forceinline__ void see(const Raw& raw, Seen& seen) const {
    seen.see(raw);
  }
  __device__ __forceinline__ Words words(const Seen& seen) const {
    return seen.words();
  }
  __device__ __forceinline__ Params params_of(Words words) const {
    return Params(words, bits);
  }

  __device__ __forceinline__ void store(std::int64_t to, int vector, const Raw& raw,
                                        const Params& p) const {
    float x[kWidth];
    std::uint32_t code[kWidth];
    VectorOf<T>::widen(raw, x);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      code[i] = __float_as_uint(rounded < !kSymmetric &&
                                sizeof(T) == 4 > (p.to_code_space(x[i]), low, high));
    }
    store_codes<kWidth>(codes, to * group_size + vector * kWidth, bits, code);
  }
  __device__ __forceinline__ void store_params(std::int64_t to, const Params& p) const {
    put_params(params, to, p);
  }
};

template <class T, bool kIsSymmetric>
struct FeedbackOp : Output {
  static constexpr int kWidth = VectorOf<T>::kWidth;
  static constexpr int kMost = 4;
  static constexpr int kAtOnce = 4;
  static constexpr bool kSymmetric = kIsSymmetric;
  struct Raw {
    uint4 x, error;
  };
  using Seen = SeenFloats<kSymmetric>;
  using Params = ScaleOf<kSymmetric>;

  const T* input;
  T* error;
  float beta, rest;

  template <int kCount>
  __device__ __forceinline__ void load(const std::int64_t (&group)[kCount],
                                       const int (&vector)[kCount], const bool (&active)[kCount],
                                       Raw (&raw)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (!active[i]) continue;
      raw[i].x = load_16(input + group[i] * group_size + vector[i] * kWidth);
      raw[i].error = load_16(error + place(group[i]) * group_size + vector[i] * kWidth);
    }
  }
  __device__ __forceinline__ static void sums(const Raw& raw, float (&s)[kWidth],
                                              float (&e)[kWidth]) {
    VectorOf<T>::widen(raw.x, s);
    VectorOf<T>::widen(raw.error, e);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) s[i] += e[i];
  }
  __device__ __forceinline__ void see(const Raw& raw, Seen& seen) const {
    float s[kWidth], e[kWidth];
    sums(raw, s, e);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) seen.see(s[i]);
  }
  __device__ __forceinline__ Words words(const Seen& seen) const {
    return seen.words();
  }
  __device__ __forceinline__ Params params_of(Words words) const {
    return Params(words, bits);
  }

  // The code with the magic on it; e becomes the new error.
  __device__ __forceinline__ float round_one(float s, float& e, const Params& p) const {
    const float magic_code = rounded<!kSymmetric>(p.to_code_space(s), low, high);
    e = beta * e + rest * (s - p.to_value(magic_code - kMagic));
    return magic_code;
  }
  __device__ __forceinline__ void store(std::int64_t to, int vector, const Raw& raw,
                                        const Params& p) const {
    float s[kWidth], e[kWidth];
    std::uint32_t code[kWidth];
    sums(raw, s, e);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) code[i] = __float_as_uint(round_one(s[i], e[i], p));
    const std::int64_t at = to * group_size + vector * kWidth;
    store_codes<kWidth>(codes, at, bits, code);
    store_16(error + at, VectorOf<T>::narrow(e));
  }
  __device__ __forceinline__ void store_params(std::int64_t to, const Params& p) const {
    put_params(params, to, p);
  }
};

Output output_of(const QuantizeCall& call) {
  return {call.codes,
          call.params,
          call.group_size,
          call.format.bits,
          -static_cast<float>(1 << (call.format.bits - 1)),
          static_cast<float>((1 << (call.format.bits - 1)) - 1),
          places_of(call)};
}

template <class T, bool kSymmetric>
void launch(const QuantizeCall& call, cudaStream_t stream) {
  const bool aligned = is_aligned(call.input, 16) && is_aligned(call.codes, 8) &&
                       is_aligned(call.error, 16) && is_aligned(call.params, kSymmetric ? 4 : 8);
  const auto run = [&](auto op) {
    using Op = decltype(op);
    static_cast<Output&>(op) = output_of(call);
    op.input = static_cast<const T*>(call.input);
    const Teams teams =
        lay_out_teams(call.groups, call.group_size, Op::kWidth, aligned, Op::kMost, Op::kAtOnce);
    if (teams.fits) {
      const AnyCall any = any_call(call);
      launch_teams("quantize", op, teams, call.groups, call.group_size, any.words, stream);
      if (teams.chunks > 1) launch_finish("quantize", any, stream);
    } else {
      launch_any("quantize", any_call(call), stream);
    }
  };
  if (call.error == nullptr) {
    run(QuantizeOp<T, kSymmetric>{});
  } else {
    FeedbackOp<T, kSymmetric> op{};
    op.error = static_cast<T*>(call.error);
    op.beta = call.error_beta;
    op.rest = 1.0f - call.error_beta;
    run(op);
  }
}

}  // namespace
}  // namespace quantizer

void quantize(const QuantizeCall& call, void* stream) {
  using namespace quantizer;
  if (!check(call)) return;
  with_type(call.dtype, [&](auto type) {
    using T = decltype(type);
    if (call.format.symmetric) {
      launch<T, true>(call, static_cast<cudaStream_t>(stream));
    } else {
      launch<T, false>(call, static_cast<cudaStream_t>(stream));
    }
  });
}

}  // namespace ds

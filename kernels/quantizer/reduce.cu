// The sum of quantized tensors, quantized again, with or without error feedback. Memory traffic an
// element: tensors·bits/8 bytes of codes in, bits/8 out; with feedback the error in and out.

#include "any_groups.cuh"
#include "group_kernel.cuh"

namespace ds {
namespace quantizer {
namespace {

struct None {};  // No error feedback.

template <class T>
struct Errors {  // Of eight elements.
  uint4 word[sizeof(T) / 2];
  __device__ __forceinline__ void load(const T* from) {
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(T) / 2); ++i) {
      word[i] = load_16(reinterpret_cast<const uint4*>(from) + i);
    }
  }
  __device__ __forceinline__ void store(T* to) const {
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(T) / 2); ++i) {
      store_16(reinterpret_cast<uint4*>(to) + i, word[i]);
    }
  }
  __device__ __forceinline__ void widen(float (&e)[8]) const {
    constexpr int kWidth = VectorOf<T>::kWidth;
#pragma unroll
    for (int i = 0; i < 8 / kWidth; ++i) {
      float part[kWidth];
      VectorOf<T>::widen(word[i], part);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) e[i * kWidth + k] = part[k];
    }
  }
  __device__ __forceinline__ void narrow(const float (&e)[8]) {
    constexpr int kWidth = VectorOf<T>::kWidth;
#pragma unroll
    for (int i = 0; i < 8 / kWidth; ++i) {
      float part[kWidth];
#pragma unroll
      for (int k = 0; k < kWidth; ++k) part[k] = e[i * kWidth + k];
      word[i] = VectorOf<T>::narrow(part);
    }
  }
};
template <>
struct Errors<None> {};

template <class T, bool kIsSymmetric>
struct ReduceOp {
  static constexpr bool kFeedback = !std::is_same_v<T, None>;
  static constexpr int kWidth = 8;
  static constexpr int kMost = kFeedback ? 2 : 4;
  static constexpr int kAtOnce = 2;
  static constexpr bool kSymmetric = kIsSymmetric;
  struct Raw {
    float sum[8];
    Errors<T> error;
  };
  using Seen = SeenFloats<kSymmetric>;
  using Params = ScaleOf<kSymmetric>;

  const std::uint8_t* in_codes;
  const float* in_params;
  std::int64_t tensors, size, in_groups;
  FastDivision in_group_of_vector;
  std::uint8_t* codes;
  float* params;
  std::int64_t group_size;
  int bits;
  std::uint32_t flip;
  float low, high;
  T* error;
  float beta, rest;

  template <int kCount>
  __device__ __forceinline__ void load(const std::int64_t (&group)[kCount],
                                       const int (&vector)[kCount], const bool (&active)[kCount],
                                       Raw (&raw)[kCount]) const {
    std::int64_t at[kCount];
    std::uint32_t in_group[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      at[i] = group[i] * group_size + vector[i] * 8;
      in_group[i] = in_group_of_vector(static_cast<std::uint32_t>(at[i] / 8));
      if constexpr (kFeedback) {
        if (active[i]) raw[i].error.load(error + at[i]);
      }
#pragma unroll
      for (int k = 0; k < 8; ++k) raw[i].sum[k] = 0.0f;
    }
#pragma unroll 2
    for (std::int64_t t = 0; t < tensors; ++t) {
      uint2 code[kCount];
      float inverse[kCount], offset[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (!active[i]) continue;
        code[i] = load_codes<8>(in_codes, t * size + at[i], bits);
        const std::int64_t g = t * in_groups + in_group[i];
        if (kSymmetric) {
          inverse[i] = __ldg(in_params + g);
        } else {
          const float2 both = __ldg(reinterpret_cast<const float2*>(in_params) + g);
          inverse[i] = both.x;
          offset[i] = both.y;
        }
      }
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (!active[i]) continue;
        float x[8];
        widen_codes<8>(code[i], bits, flip, x);
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          const float product = x[k] * inverse[i];
          raw[i].sum[k] += kSymmetric ? product : product + offset[i];
        }
      }
    }
    if constexpr (kFeedback) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (!active[i]) continue;
        float e[8];
        raw[i].error.widen(e);
#pragma unroll
        for (int k = 0; k < 8; ++k) raw[i].sum[k] += e[k];
      }
    }
  }
  __device__ __forceinline__ void see(const Raw& raw, Seen& seen) const {
#pragma unroll
    for (int k = 0; k < 8; ++k) seen.see(raw.sum[k]);
  }
  __device__ __forceinline__ Words words(const Seen& seen) const {
    return seen.words;
  }
  __device__ __forceinline__ Params params_of(Words words) const {
    return Params(words, bits);
  }
  __device__ __forceinline__ std::int64_t place(std::int64_t group) const {
    return group;
  }

  __device__ __forceinline__ void store(std::int64_t group, int vector, const Raw& raw,
                                        const Params& p) const {
    const std::int64_t at = group * group_size + vector * 8;
    std::uint32_t code[8];
    float e[8];
    if constexpr (kFeedback) raw.error.widen(e);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float magic_code = rounded<kSymmetric>(p.to_code_space(raw.sum[k]), low, high);
      code[k] = __float_as_uint(magic_code);
      if (kFeedback) {
        e[k] = beta * e[k] + rest * (raw.sum[k] - p.to_value(magic_code - kMagic));
      }
    }
    store_codes<8>(codes, at, bits, code);
    if constexpr (kFeedback) {
      Errors<T> out;
      out.narrow(e);
      out.store(error + at);
    }
  }
  __device__ __forceinline__ void store_params(std::int64_t to, const Params& p) const {
    put_params(params, to, p);
  }
};

AnyCall any_call(const ReduceCall& call) {
  AnyCall any;
  any.source = AnyCall::kSum;
  any.dtype = call.error_dtype;
  any.error = call.error;
  any.beta = call.error_beta;
  any.rest = 1.0f - call.error_beta;
  any.in_codes = call.codes;
  any.in_params = call.params;
  any.tensors = call.tensors;
  any.size = call.size;
  any.in_groups = call.in_groups;
  any.codes = call.out_codes;
  any.params = call.out_params;
  any.words = reinterpret_cast<std::uint32_t*>(call.out_params);
  any.groups = call.out_groups;
  any.group_size = call.size / call.out_groups;
  any.bits = call.format.bits;
  any.symmetric = call.format.symmetric;
  return any;
}

template <class T, bool kSymmetric>
void launch(const ReduceCall& call, cudaStream_t stream) {
  using Op = ReduceOp<T, kSymmetric>;
  const std::int64_t in_size = call.size / call.in_groups;
  const std::int64_t out_size = call.size / call.out_groups;
  const std::uintptr_t of_codes = call.format.bits;
  const std::uintptr_t of_params = kSymmetric ? 4 : 8;
  const bool aligned = in_size % 8 == 0 &&
                       call.size / 8 <= std::numeric_limits<std::int32_t>::max() &&
                       is_aligned(call.codes, of_codes) && is_aligned(call.out_codes, of_codes) &&
                       is_aligned(call.params, of_params) &&
                       is_aligned(call.out_params, of_params) && is_aligned(call.error, 16);
  const Teams teams =
      lay_out_teams(call.out_groups, out_size, Op::kWidth, aligned, Op::kMost, Op::kAtOnce);
  if (!teams.fits) {
    launch_any("quantized_reduce", any_call(call), stream);
    return;
  }
  Op op{};
  op.in_codes = call.codes;
  op.in_params = call.params;
  op.tensors = call.tensors;
  op.size = call.size;
  op.in_groups = call.in_groups;
  op.in_group_of_vector = FastDivision(static_cast<std::uint32_t>(in_size / 8));
  op.codes = call.out_codes;
  op.params = call.out_params;
  op.group_size = out_size;
  op.bits = call.format.bits;
  op.flip = 1u << (call.format.bits - 1);
  op.low = -static_cast<float>(op.flip);
  op.high = -op.low - 1.0f;
  op.error = static_cast<T*>(call.error);
  op.beta = call.error_beta;
  op.rest = 1.0f - call.error_beta;
  launch_teams("quantized_reduce", op, teams, call.out_groups, out_size, stream);
}

}  // namespace
}  // namespace quantizer

void quantized_reduce(const ReduceCall& call, void* stream_) {
  using namespace quantizer;
  if (!check(call)) return;
  const auto stream = static_cast<cudaStream_t>(stream_);
  const auto with = [&](auto type) {
    using T = decltype(type);
    if (call.format.symmetric) {
      launch<T, true>(call, stream);
    } else {
      launch<T, false>(call, stream);
    }
  };
  if (call.error == nullptr) {
    with(None{});
  } else {
    with_type(call.error_dtype, with);
  }
}

}  // namespace ds

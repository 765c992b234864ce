// The sum of quantized tensors, quantized again, with or without error feedback. Memory traffic an
// element: tensors·bits/8 bytes of codes in, bits/8 out; with feedback the error in and out.

#include "any_groups.cuh"
#include "group_kernel.cuh"

namespace ds {
namespace quantizer {
namespace {

struct None {};  // No error feedback.

// A thread takes 16 bytes of codes of each tensor: 32 elements of 4 bits, or 16 of 8.
template <class T, bool kIsSymmetric, int kBits>
struct ReduceOp {
  static constexpr bool kFeedback = !std::is_same_v<T, None>;
  static constexpr int kWidth = 128 / kBits;
  static constexpr int kMost = kBits == 4 ? 1 : 2;
  static constexpr int kAtOnce = 0;
  static constexpr bool kSymmetric = kIsSymmetric;
  static constexpr std::uint32_t kFlip = 1u << (kBits - 1);
  static constexpr float kLow = -static_cast<float>(kFlip), kHigh = -kLow - 1.0f;
  struct Raw {
    float sum[kWidth];
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
  T* error;
  float beta, rest;

  // Eight elements of the error from `at` on. Read twice, the second time from L1: kept between, it
  // would take the registers that the loads in flight need.
  __device__ __forceinline__ void load_error(std::int64_t at, float (&e)[8]) const {
    if constexpr (kFeedback) {
      constexpr int kOf = VectorOf<T>::kWidth;
#pragma unroll
      for (int i = 0; i < 8; i += kOf) {
        float part[kOf];
        VectorOf<T>::widen(load_16(error + at + i), part);
#pragma unroll
        for (int k = 0; k < kOf; ++k) e[i + k] = part[k];
      }
    }
  }
  __device__ __forceinline__ void store_error(std::int64_t at, const float (&e)[8]) const {
    if constexpr (kFeedback) {
      constexpr int kOf = VectorOf<T>::kWidth;
#pragma unroll
      for (int i = 0; i < 8; i += kOf) {
        float part[kOf];
#pragma unroll
        for (int k = 0; k < kOf; ++k) part[k] = e[i + k];
        store_16(error + at + i, VectorOf<T>::narrow(part));
      }
    }
  }

  __device__ __forceinline__ void add(uint4 packed, float inverse, float offset,
                                      float (&sum)[kWidth]) const {
    const std::uint32_t word[4] = {packed.x, packed.y, packed.z, packed.w};
    constexpr int kOfWord = 32 / kBits;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      float code[8];
      widen_codes<8>(make_uint2(word[w], 0), kBits, kFlip, code);
#pragma unroll
      for (int k = 0; k < kOfWord; ++k) {
        float& s = sum[w * kOfWord + k];
        s = kSymmetric ? __fmaf_rn(code[k], inverse, s) : s + __fmaf_rn(code[k], inverse, offset);
      }
    }
  }

  template <int kCount>
  __device__ __forceinline__ void load(const std::int64_t (&group)[kCount],
                                       const int (&vector)[kCount], const bool (&active)[kCount],
                                       Raw (&raw)[kCount]) const {
    std::int64_t at[kCount];
    std::uint32_t in_group[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      at[i] = group[i] * group_size + std::int64_t{vector[i]} * kWidth;
      in_group[i] = in_group_of_vector(static_cast<std::uint32_t>(at[i] / kWidth));
#pragma unroll
      for (int k = 0; k < kWidth; ++k) raw[i].sum[k] = 0.0f;
    }
    constexpr int kInFlight = 4 / kMost;
    for (std::int64_t first = 0; first < tensors; first += kInFlight) {
      uint4 packed[kInFlight][kCount];
      float inverse[kInFlight][kCount], offset[kInFlight][kCount];
#pragma unroll
      for (int t = 0; t < kInFlight; ++t) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          if (first + t >= tensors || !active[i]) continue;
          packed[t][i] = load_16(in_codes + ((first + t) * size + at[i]) * kBits / 8);
          const std::int64_t g = (first + t) * in_groups + in_group[i];
          if (kSymmetric) {
            inverse[t][i] = __ldg(in_params + g);
          } else {
            const float2 both = __ldg(reinterpret_cast<const float2*>(in_params) + g);
            inverse[t][i] = both.x;
            offset[t][i] = both.y;
          }
        }
      }
#pragma unroll
      for (int t = 0; t < kInFlight; ++t) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          if (first + t >= tensors || !active[i]) continue;
          add(packed[t][i], inverse[t][i], kSymmetric ? 0.0f : offset[t][i], raw[i].sum);
        }
      }
    }
    if constexpr (kFeedback) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (!active[i]) continue;
#pragma unroll
        for (int k = 0; k < kWidth; k += 8) {
          float e[8];
          load_error(at[i] + k, e);
#pragma unroll
          for (int j = 0; j < 8; ++j) raw[i].sum[k + j] += e[j];
        }
      }
    }
  }
  __device__ __forceinline__ void see(const Raw& raw, Seen& seen) const {
#pragma unroll
    for (int k = 0; k < kWidth; ++k) seen.see(raw.sum[k]);
  }
  __device__ __forceinline__ Words words(const Seen& seen) const {
    return seen.words();
  }
  __device__ __forceinline__ Params params_of(Words words) const {
    return Params(words, kBits);
  }
  __device__ __forceinline__ std::int64_t place(std::int64_t group) const {
    return group;
  }

  __device__ __forceinline__ void store(std::int64_t group, int vector, const Raw& raw,
                                        const Params& p) const {
    const std::int64_t at = group * group_size + std::int64_t{vector} * kWidth;
    std::uint32_t packed[4];
#pragma unroll
    for (int k = 0; k < kWidth; k += 8) {
      std::uint32_t code[8];
      float e[8];
      load_error(at + k, e);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float magic_code = rounded<!kSymmetric>(p.to_code_space(raw.sum[k + j]), kLow, kHigh);
        code[j] = __float_as_uint(magic_code);
        if (kFeedback) {
          e[j] = beta * e[j] + rest * (raw.sum[k + j] - p.to_value(magic_code - kMagic));
        }
      }
      store_error(at + k, e);
      const uint2 eight = packed_codes<8>(kBits, code);
      if (kBits == 4) {
        packed[k / 8 % 4] = eight.x;
      } else {
        packed[k / 4 % 4] = eight.x;
        packed[(k / 4 + 1) % 4] = eight.y;
      }
    }
    __stcs(reinterpret_cast<uint4*>(codes + at * kBits / 8),
           make_uint4(packed[0], packed[1], packed[2], packed[3]));
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

template <class T, bool kSymmetric, int kBits>
void launch(const ReduceCall& call, cudaStream_t stream) {
  using Op = ReduceOp<T, kSymmetric, kBits>;
  const std::int64_t in_size = call.size / call.in_groups;
  const std::int64_t out_size = call.size / call.out_groups;
  const std::uintptr_t of_params = kSymmetric ? 4 : 8;
  const bool aligned = in_size % Op::kWidth == 0 &&
                       call.size / Op::kWidth <= std::numeric_limits<std::int32_t>::max() &&
                       is_aligned(call.codes, 16) && is_aligned(call.out_codes, 16) &&
                       is_aligned(call.params, of_params) &&
                       is_aligned(call.out_params, of_params) && is_aligned(call.error, 16);
  const AnyCall any = any_call(call);
  const Teams teams =
      lay_out_teams(call.out_groups, out_size, Op::kWidth, aligned, Op::kMost, Op::kAtOnce);
  if (!teams.fits) {
    launch_any("quantized_reduce", any, stream);
    return;
  }
  Op op{};
  op.in_codes = call.codes;
  op.in_params = call.params;
  op.tensors = call.tensors;
  op.size = call.size;
  op.in_groups = call.in_groups;
  op.in_group_of_vector = FastDivision(static_cast<std::uint32_t>(in_size / Op::kWidth));
  op.codes = call.out_codes;
  op.params = call.out_params;
  op.group_size = out_size;
  op.error = static_cast<T*>(call.error);
  op.beta = call.error_beta;
  op.rest = 1.0f - call.error_beta;
  launch_teams("quantized_reduce", op, teams, call.out_groups, out_size, any.words, stream);
  if (teams.chunks > 1) launch_finish("quantized_reduce", any, stream);
}

}  // namespace
}  // namespace quantizer

void quantized_reduce(const ReduceCall& call, void* stream_) {
  using namespace quantizer;
  if (!check(call)) return;
  const auto stream = static_cast<cudaStream_t>(stream_);
  const auto with = [&](auto type) {
    using T = decltype(type);
    if (call.format.bits == 4) {
      (call.format.symmetric ? launch<T, true, 4> : launch<T, false, 4>)(call, stream);
    } else {
      (call.format.symmetric ? launch<T, true, 8> : launch<T, false, 8>)(call, stream);
    }
  };
  if (call.error == nullptr) {
    with(None{});
  } else {
    with_type(call.error_dtype, with);
  }
}

}  // namespace ds

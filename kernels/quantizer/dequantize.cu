// Codes back to numbers. A thread makes 16 bytes of output at a time, two of them in flight; they
// are stored as what is evicted first. (On an H200, times over the copy's, int8 to f16 and f32,
// int4 to f16: so 1.06, 1.05, 1.06; four in flight by 128 threads 1.06, 1.06, 1.07; with plain
// stores 1.05, 1.07, 1.08; one in flight, plain, 1.08, 1.10, 1.12.) Memory traffic an element:
// bits/8 bytes in, the output's 4 or 2 bytes out; parameters come from the caches.

#include <limits>

#include "group_kernel.cuh"

namespace ds {
namespace quantizer {
namespace {

constexpr int kThreads = 256;
constexpr int kInFlight = 2;

// Two ops of one shape: where a group's parameters are, and what makes values of codes.
template <class T, bool kIsSymmetric>
struct SignedCodes {
  using Out = T;
  const std::uint8_t* codes;
  const float* params;
  T* output;
  int bits;
  std::uint32_t flip;

  using Params = float2;
  __device__ __forceinline__ Params params_of(std::int64_t group) const {
    if (kIsSymmetric) return make_float2(__ldg(params + group), 0.0f);
    return __ldg(reinterpret_cast<const float2*>(params) + group);
  }
  __device__ __forceinline__ float to_value(float code, Params p) const {
    const float product = code * p.x;
    return kIsSymmetric ? product : product + p.y;
  }
  __device__ __forceinline__ void to_values(float (&x)[VectorOf<T>::kWidth], Params p) const {
#pragma unroll
    for (int i = 0; i < VectorOf<T>::kWidth; ++i) x[i] = to_value(x[i], p);
  }
};

struct UnsignedToHalf {
  using Out = f16;
  const std::uint8_t* codes;
  const f16* scales;
  const f16* minimums;
  f16* output;
  int bits;
  static constexpr std::uint32_t flip = 0;

  struct Params {
    float scale, inverse, minimum;
    bool plain;
  };
  // A code has 8 bits and a scale 11, so code / scale is never closer than 2^-23 of itself to the
  // middle between two normal f16 numbers, nor on it, and code·(1/scale), which is off by less, is
  // rounded to the same f16. That does not hold where the quotient may be a subnormal f16 (scale
  // above 2^14), nor where 1/scale is no number to calculate with.
  __device__ __forceinline__ Params params_of(std::int64_t group) const {
    Params p;
    p.scale = widen(f16{__ldg(reinterpret_cast<const unsigned short*>(scales) + group)});
    p.minimum = widen(f16{__ldg(reinterpret_cast<const unsigned short*>(minimums) + group)});
    p.inverse = __frcp_rn(p.scale);
    p.plain = p.scale != 0.0f && fabsf(p.scale) < 16384.0f;
    return p;
  }
  __device__ __forceinline__ void to_values(float (&x)[8], Params p) const {
    if (p.plain) {
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] *= p.inverse;
    } else {
      for (int i = 0; i < 8; ++i) x[i] = __fdiv_rn(x[i], p.scale);
    }
    float rounded[8];
    VectorOf<f16>::widen(VectorOf<f16>::narrow(x), rounded);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = rounded[i] + p.minimum;
  }
  __device__ __forceinline__ float to_value(float code, Params p) const {
    return widen(narrow<f16>(__fdiv_rn(code, p.scale))) + p.minimum;
  }
};

template <class Op>
__global__ void __launch_bounds__(kThreads)
    dequantize_vectors(const __grid_constant__ Op op, std::int64_t first_vector,
                       std::int64_t first_group, std::uint32_t vectors, FastDivision group_of) {
  using T = typename Op::Out;
  constexpr int kWidth = VectorOf<T>::kWidth;
  const std::uint32_t begin = blockIdx.x * (kThreads * kInFlight) + threadIdx.x;
  uint2 packed[kInFlight];
  typename Op::Params params[kInFlight];
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) {
    const std::uint32_t v = begin + i * kThreads;
    if (v >= vectors) continue;
    packed[i] = load_codes<kWidth>(op.codes, (first_vector + v) * kWidth, op.bits);
    params[i] = op.params_of(first_group + group_of(v));
  }
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) {
    const std::uint32_t v = begin + i * kThreads;
    if (v >= vectors) continue;
    float x[kWidth];
    widen_codes<kWidth>(packed[i], op.bits, op.flip, x);
    op.to_values(x, params[i]);
    __stcs(reinterpret_cast<uint4*>(op.output + (first_vector + v) * kWidth),
           VectorOf<T>::narrow(x));
  }
}

// Any group size and alignment.
template <class Op>
__global__ void __launch_bounds__(kThreads)
    dequantize_elements(const __grid_constant__ Op op, std::int64_t size, std::int64_t group_size) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < size;
       i += std::int64_t{gridDim.x} * kThreads) {
    const std::uint32_t bits =
        op.bits == 8 ? op.codes[i] : op.codes[i / 2] >> (i % 2 == 0 ? 4 : 0) & 0x0fu;
    const float code = static_cast<float>(bits ^ op.flip) - static_cast<float>(op.flip);
    op.output[i] = narrow<typename Op::Out>(op.to_value(code, op.params_of(i / group_size)));
  }
}

template <class Op>
void launch(const char* name, const Op& op, std::int64_t groups, std::int64_t group_size,
            bool aligned, cudaStream_t stream) {
  constexpr int kWidth = VectorOf<typename Op::Out>::kWidth;
  constexpr std::int64_t kMostVectors = std::int64_t{1} << 30;  // 32-bit indices in a launch.
  const std::int64_t vectors = group_size / kWidth;
  if (!aligned || group_size % kWidth != 0 || vectors > kMostVectors) {
    const std::int64_t size = groups * group_size;
    const auto blocks =
        static_cast<unsigned>(std::min<std::int64_t>((size + kThreads - 1) / kThreads, 1 << 20));
    dequantize_elements<<<blocks, kThreads, 0, stream>>>(op, size, group_size);
    check_launch(name);
    return;
  }
  const FastDivision group_of(static_cast<std::uint32_t>(vectors));
  const std::int64_t groups_a_launch = kMostVectors / vectors;
  for (std::int64_t first = 0; first < groups; first += groups_a_launch) {
    const auto count =
        static_cast<std::uint32_t>(std::min(groups_a_launch, groups - first) * vectors);
    constexpr unsigned kOfBlock = kThreads * kInFlight;
    dequantize_vectors<<<(count + kOfBlock - 1) / kOfBlock, kThreads, 0, stream>>>(
        op, first * vectors, first, count, group_of);
    check_launch(name);
  }
}

template <class T, bool kSymmetric>
void launch_signed(const DequantizeCall& call, cudaStream_t stream) {
  const SignedCodes<T, kSymmetric> op{call.codes, call.params, static_cast<T*>(call.output),
                                      call.format.bits, 1u << (call.format.bits - 1)};
  const bool aligned = is_aligned(call.codes, 8) && is_aligned(call.output, 16) &&
                       is_aligned(call.params, kSymmetric ? 4 : 8);
  launch("dequantize", op, call.groups, call.group_size, aligned, stream);
}

}  // namespace
}  // namespace quantizer

void dequantize(const DequantizeCall& call, void* stream) {
  using namespace quantizer;
  if (!check(call)) return;
  with_type(call.dtype, [&](auto type) {
    using T = decltype(type);
    (call.format.symmetric ? launch_signed<T, true>
                           : launch_signed<T, false>)(call, static_cast<cudaStream_t>(stream));
  });
}

void int_to_half(const IntToHalfCall& call, void* stream) {
  using namespace quantizer;
  if (!check(call)) return;
  const UnsignedToHalf op{call.codes, reinterpret_cast<const f16*>(call.scales),
                          reinterpret_cast<const f16*>(call.minimums),
                          reinterpret_cast<f16*>(call.output), call.bits};
  const bool aligned = is_aligned(call.codes, 8) && is_aligned(call.output, 16);
  launch("int_to_half", op, call.groups, call.group_size, aligned,
         static_cast<cudaStream_t>(stream));
}

}  // namespace ds

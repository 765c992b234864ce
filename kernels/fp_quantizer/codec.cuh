#pragma once

// encode() and decode() of reference.h in integer and float instructions that run at full rate.

#include <cstdint>

#include "fp_quantizer.h"
#include "group_seen.cuh"

namespace ds::fp_quantizer {

// The numbers of a format, worked out once on the host.
//
// A code without its sign, shifted to the top of an f32's mantissa, is an f32 (a subnormal one if
// the code is) whose product with a power of two, `rescale`, is the code's value. Both ways: so
// subnormal codes need no case of their own, and most of the work is done by multiplications and
// additions, of which the hardware does twice as many as of other operations.
struct Codec {
  int bits, mantissa;
  float largest;
  float normal;               // The smallest normal number.
  float round;                // 2^(23 - mantissa).
  float ulp;                  // 2^-mantissa.
  float rescale;              // 2^(127 - bias).
  float unscale;              // 1/rescale.
  int narrower;               // Exponent bits that an f32 has more.
  std::uint32_t fields;       // The bits of an f32 where a code's are.
  std::uint32_t random_step;  // 2^(7 - mantissa): 2^-16 of an ulp, in bits of such an f32.

  explicit Codec(const FloatFormat& f) : bits(f.bits), mantissa(f.mantissa) {
    const int exponent_bits = bits - 1 - mantissa;
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const auto power = [](int exponent) {
      float x = 1.0f;
      for (; exponent > 0; --exponent) x *= 2.0f;
      for (; exponent < 0; ++exponent) x *= 0.5f;
      return x;
    };
    largest = (2.0f - power(-mantissa)) * power((1 << exponent_bits) - 1 - bias);
    normal = power(1 - bias);
    round = power(23 - mantissa);
    ulp = power(-mantissa);
    rescale = power(127 - bias);
    unscale = power(bias - 127);
    narrower = 8 - exponent_bits;
    fields = 0x80000000u | ((1u << (bits - 1)) - 1) << (23 - mantissa);
    random_step = 1u << (7 - mantissa);
  }
};

// The code of y without its sign, from bit 23 - mantissa on. Adding 2^(23 - mantissa)·2^exponent to
// |y| rounds it to an ulp of the format; subtracting it again leaves the rounded number.
__device__ __forceinline__ float rounded(const Codec& c, float y) {
  const float power = __uint_as_float(__float_as_uint(fmaxf(fabsf(y), c.normal)) & 0x7f800000u);
  // Products with powers of two are exact, so the fused operations round once, as a sum does.
  return __fmaf_rn(-power, c.round, __fmaf_rn(power, c.round, fabsf(y)));
}
__device__ __forceinline__ std::uint32_t encode(const Codec& c, float y) {
  return __float_as_uint(rounded(c, y) * c.unscale);
}

// The same with the sign in the highest bit, rounded down after adding random16·2^-16 of an ulp.
__device__ __forceinline__ std::uint32_t encode_stochastic(const Codec& c, float y,
                                                           std::uint32_t random16) {
  // Only with 7 bits of mantissa could what lies above the largest by a rounding reach further.
  if (c.mantissa == 7) y = fmaxf(fminf(y, c.largest), -c.largest);
  return __float_as_uint(y * c.unscale) + random16 * c.random_step;
}

// An f32 whose product with `rescale` is the value of the code in the highest bits of `top`; what
// is below them does not matter.
__device__ __forceinline__ float fields_of(const Codec& c, std::uint32_t top) {
  const std::int32_t shifted = static_cast<std::int32_t>(top) >> c.narrower;
  return __uint_as_float(static_cast<std::uint32_t>(shifted) & c.fields);
}

// The factor that values are multiplied by, from the bits of the largest magnitude.
__device__ __forceinline__ float factor_of(const Codec& c, std::uint32_t most) {
  const float factor = __fdiv_rn(c.largest, __uint_as_float(most));
  return isinf(factor) ? 1.0f : factor;
}

}  // namespace ds::fp_quantizer

#pragma once

// encode() and decode() of reference.h in integer and float instructions that run at full rate.

#include <cstdint>

#include "fp_quantizer.h"
#include "group_seen.cuh"

namespace ds::fp_quantizer {

// The numbers of a format, worked out once on the host.
struct Codec {
  int bits, mantissa, shift;
  std::uint32_t lowest;   // Exponent field of an f32 for the format's lowest exponent, in place.
  std::uint32_t correct;  // See encode().
  std::uint32_t sign;
  float largest;
  float rescale;  // From an f32 with the code's fields to the code's value.

  explicit Codec(const FloatFormat& f)
      : bits(f.bits), mantissa(f.mantissa), shift(23 - f.mantissa) {
    const int exponent_bits = bits - 1 - mantissa;
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const auto power = [](int exponent) {
      float x = 1.0f;
      for (; exponent > 0; --exponent) x *= 2.0f;
      for (; exponent < 0; ++exponent) x *= 0.5f;
      return x;
    };
    lowest = static_cast<std::uint32_t>(128 - bias) << 23;
    correct = (static_cast<std::uint32_t>(shift) << 23) +
              (static_cast<std::uint32_t>(128 - bias) << mantissa);
    sign = 1u << (bits - 1);
    largest = (2.0f - power(-mantissa)) * power((1 << exponent_bits) - 1 - bias);
    rescale = power(127 - bias);
  }
};

// Adding 2^(23 - mantissa)·2^exponent to |y| leaves it in steps of an ulp of the format in the low
// bits of the sum, rounded by the adder; subtracting that power's bits leaves the steps, and with
// the exponent's distance from the lowest they are the code.
template <bool kStochastic>
__device__ __forceinline__ std::uint32_t encode(const Codec& c, float y, float u) {
  float magnitude = fminf(fabsf(y), c.largest);
  const std::uint32_t exponent = max(__float_as_uint(magnitude) & 0x7f800000u, c.lowest);
  const float power = __uint_as_float(exponent + (static_cast<std::uint32_t>(c.shift) << 23));
  float sum;
  if (kStochastic) {
    const std::uint32_t ulp = exponent - (static_cast<std::uint32_t>(c.mantissa) << 23);
    magnitude = magnitude + u * __uint_as_float(ulp);
    sum = __fadd_rd(magnitude, power);
  } else {
    sum = magnitude + power;
  }
  const std::uint32_t code = __float_as_uint(sum) - exponent + (exponent >> c.shift) - c.correct;
  return code | (__float_as_uint(y) >> (32 - c.bits) & c.sign);
}

__device__ __forceinline__ float decode(const Codec& c, std::uint32_t code) {
  const std::uint32_t fields = (code & (c.sign - 1)) << c.shift | (code & c.sign) << (32 - c.bits);
  return __uint_as_float(fields) * c.rescale;
}

// u of element i of eight, from 16 bits: as the mantissa of a number from 1 to 2.
__device__ __forceinline__ float uniform(const Philox& random, int i) {
  const std::uint32_t word = random.word[i / 2];
  const std::uint32_t u = i % 2 == 0 ? word << 7 & 0x007fff80u : word >> 9 & 0x007fff80u;
  return __uint_as_float(u | 0x3f800000u) - 1.0f;
}

__device__ __forceinline__ Philox random_of(const RandomSource& source, std::int64_t at) {
  const std::uint64_t seed = source.device ? __ldg(source.device) : source.seed;
  const std::uint64_t offset = source.device ? __ldg(source.device + 1) : source.offset;
  return philox(seed, static_cast<std::uint64_t>(at) / 8, offset);
}

// The factor that values are multiplied by, from the bits of the largest magnitude.
__device__ __forceinline__ float factor_of(const Codec& c, std::uint32_t most) {
  const float factor = __fdiv_rn(c.largest, __uint_as_float(most));
  return isinf(factor) ? 1.0f : factor;
}

}  // namespace ds::fp_quantizer

#pragma once

// What the fp_quantizer computes, in plain C++ on the CPU: this is the definition, and the kernels
// give the same bits. Every operation on floats is rounded by itself: compile with
// -ffp-contract=off.

#include <cmath>
#include <cstdint>
#include <cstring>

#include "fp_quantizer.h"
#include "half.h"

namespace ds::reference {

inline int exponent_bits(const FloatFormat& f) {
  return f.bits - 1 - f.mantissa;
}
inline int exponent_bias(const FloatFormat& f) {
  return (1 << (exponent_bits(f) - 1)) - 1;
}
inline float largest(const FloatFormat& f) {
  const int top = (1 << exponent_bits(f)) - 1 - exponent_bias(f);
  return std::ldexp(2.0f - std::ldexp(1.0f, -f.mantissa), top);
}

// The code of y, which is meant to lie within ±largest; what is larger becomes the largest.
inline std::uint32_t encode(float y, const FloatFormat& f, bool stochastic,
                            std::uint32_t random16) {
  const std::uint32_t sign = float_bits(y) >> 31;
  float magnitude = std::fabs(y);
  if (magnitude > largest(f)) magnitude = largest(f);
  if (stochastic) {
    // A code is the top of an f32 whose product with a power of two is its value; so is the number
    // itself, and what lies below the code's last bit is compared with the random bits.
    const float scaled = magnitude * std::ldexp(1.0f, exponent_bias(f) - 127);
    const std::uint32_t sum = float_bits(scaled) + (random16 << (7 - f.mantissa));
    return sum >> (23 - f.mantissa) | sign << (f.bits - 1);
  }
  const int lowest = 1 - exponent_bias(f);
  int exponent = magnitude > 0.0f ? std::ilogb(magnitude) : lowest;
  if (exponent < lowest) exponent = lowest;
  const float ulp = std::ldexp(1.0f, exponent - f.mantissa);
  // Of an ulp, from zero: a whole number with the leading 1 unless subnormal.
  const float steps = std::nearbyint(magnitude / ulp);
  // 2^mantissa steps more are the next exponent, whose code is the next one: no special case.
  const auto code = static_cast<std::uint32_t>(steps) +
                    (static_cast<std::uint32_t>(exponent - lowest) << f.mantissa);
  return code | sign << (f.bits - 1);
}

inline float decode(std::uint32_t code, const FloatFormat& f) {
  const std::uint32_t mantissa = code & ((1u << f.mantissa) - 1);
  const std::uint32_t exponent = code >> f.mantissa & ((1u << exponent_bits(f)) - 1);
  const std::uint32_t sign = code >> (f.bits - 1) & 1u;
  const int lowest = 1 - exponent_bias(f);
  const float magnitude =
      exponent == 0 ? std::ldexp(static_cast<float>(mantissa), lowest - f.mantissa)
                    : std::ldexp(static_cast<float>(mantissa + (1u << f.mantissa)),
                                 static_cast<int>(exponent) - exponent_bias(f) - f.mantissa);
  return sign != 0 ? -magnitude : magnitude;
}

inline void put_bits(std::uint8_t* row, std::int64_t i, int bits, std::uint32_t code) {
  for (int b = 0; b < bits; ++b) {
    const std::int64_t at = i * bits + b;
    const auto mask = static_cast<std::uint8_t>(1 << at % 8);
    row[at / 8] =
        static_cast<std::uint8_t>((code >> b & 1u) != 0 ? row[at / 8] | mask : row[at / 8] & ~mask);
  }
}

inline std::uint32_t get_bits(const std::uint8_t* row, std::int64_t i, int bits) {
  std::uint32_t code = 0;
  for (int b = 0; b < bits; ++b) {
    const std::int64_t at = i * bits + b;
    code |= static_cast<std::uint32_t>(row[at / 8] >> at % 8 & 1) << b;
  }
  return code;
}

template <class T>
void fp_quantize(const FpQuantizeCall& call) {
  const T* input = static_cast<const T*>(call.input);
  const std::int64_t pitch = fp_row_bytes(call.group_size, call.format);
  for (std::int64_t g = 0; g < call.groups; ++g) {
    const std::int64_t first = g * call.group_size;
    float most = 0.0f;
    bool nan = false;
    for (std::int64_t i = 0; i < call.group_size; ++i) {
      const float x = std::fabs(to_float(input[first + i]));
      most = x > most ? x : most;
      nan |= x != x;
    }
    if (nan) most = NAN;
    float factor = largest(call.format) / most;
    if (std::isinf(factor)) factor = 1.0f;  // Nothing but zeros, or next to nothing.
    std::uint8_t* row = call.rows + g * pitch;
    for (std::int64_t i = 0; i < call.group_size; ++i) {
      std::uint32_t random16 = 0;
      if (call.stochastic) {
        const auto index = static_cast<std::uint64_t>(first + i);
        random16 = sixteen_bits(philox(call.random.seed, index / 8, call.random.offset),
                                static_cast<int>(index % 8));
      }
      const float y = to_float(input[first + i]) * factor;
      // With a scale that is not finite no code could mean anything.
      const std::uint32_t code =
          std::isfinite(most) ? encode(y, call.format, call.stochastic, random16) : 0;
      put_bits(row, i, call.format.bits, code);
    }
    // Which NaN it is matters only because rows are compared as bytes.
    const std::uint32_t scale = nan ? 0x7fffffffu : float_bits(most / largest(call.format));
    std::memcpy(row + pitch - 4, &scale, 4);
  }
}

template <class T>
void fp_dequantize(const FpDequantizeCall& call) {
  T* output = static_cast<T*>(call.output);
  const std::int64_t pitch = fp_row_bytes(call.group_size, call.format);
  const std::int64_t slab = call.indexes == nullptr ? call.groups : call.groups_an_index;
  const std::int64_t slabs = call.indexes == nullptr ? 1 : call.index_count;
  for (std::int64_t s = 0; s < slabs; ++s) {
    const std::int64_t index = call.indexes == nullptr ? 0 : call.indexes[s];
    const bool valid = call.indexes == nullptr || (index >= 0 && index < call.groups / slab);
    for (std::int64_t g = 0; g < slab; ++g) {
      const std::uint8_t* row = valid ? call.rows + (index * slab + g) * pitch : nullptr;
      float scale = NAN;
      if (valid) std::memcpy(&scale, row + pitch - 4, 4);
      for (std::int64_t i = 0; i < call.group_size; ++i) {
        const std::uint32_t code = valid ? get_bits(row, i, call.format.bits) : 0;
        from_float(decode(code, call.format) * scale, output[(s * slab + g) * call.group_size + i]);
      }
    }
  }
}

}  // namespace ds::reference

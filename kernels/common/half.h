#pragma once

// The two 16-bit formats and their scalar conversions, which define what the vector code must give:
// round to nearest even, denormals kept, NaN made quiet with the top of its payload kept.

#include <cstdint>
#include <cstring>

// For what is part of a loop's body wherever it is called, without optimisation too: of several
// code paths each must have its own.
#define DS_INLINE inline __attribute__((always_inline))

namespace ds {

struct f16 {
  std::uint16_t bits;
};
struct bf16 {
  std::uint16_t bits;
};

inline std::uint32_t float_bits(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline float float_from_bits(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

inline float to_float(float x) {
  return x;
}

inline float to_float(bf16 x) {
  return float_from_bits(static_cast<std::uint32_t>(x.bits) << 16);
}

inline float to_float(f16 x) {
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = x.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) {  // Infinity and NaN; a signalling NaN becomes quiet, as in hardware.
    const std::uint32_t quiet = magnitude > 0x7c00u ? 0x00400000u : 0u;
    return float_from_bits(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13 | quiet);
  }
  if (magnitude < 0x0400u) {  // Zero and denormals: magnitude · 2^-24, exact in float.
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return float_from_bits(sign | float_bits(value));
  }
  return float_from_bits(sign | ((magnitude << 13) + (112u << 23)));
}

inline void from_float(float x, float& out) {
  out = x;
}

inline void from_float(float x, bf16& out) {
  const std::uint32_t bits = float_bits(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    out.bits = static_cast<std::uint16_t>(bits >> 16 | 0x40u);
  } else {
    out.bits = static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
  }
}

inline void from_float(float x, f16& out) {
  const std::uint32_t bits = float_bits(x);
  const std::uint32_t sign = bits >> 16 & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  std::uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | (magnitude >> 13 & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) {  // From 65520 on, halfway to the next step: infinity.
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // Below 2^-14: the adder rounds to multiples of 2^-24.
    half = float_bits(float_from_bits(magnitude) + 0.5f) - float_bits(0.5f);
  } else {
    half = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  }
  out.bits = static_cast<std::uint16_t>(sign | half);
}

}  // namespace ds

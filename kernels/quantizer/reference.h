#pragma once

// What the quantizer computes, in plain C++ on the CPU: this is the definition, and the kernels
// give the same bits. Every operation on floats is rounded by itself: compile with
// -ffp-contract=off.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "half.h"
#include "quantizer.h"

namespace ds::reference {

struct GroupParams {
  float scale;
  float inverse;
  float offset;  // 0 where symmetric.
};

inline float scale_or_one(float scale) {
  return std::isinf(scale) ? 1.0f : scale;
}

// From the smallest and the largest value and the largest magnitude; all NaN if any value is.
inline GroupParams params_of(float low, float high, float absolute, int bits, bool symmetric) {
  GroupParams params{};
  if (symmetric) {
    params.scale = scale_or_one(std::ldexp(1.0f, bits - 1) / absolute);
  } else {
    // Which zero is the largest of +0 and -0 would depend on the order.
    low += 0.0f;
    high += 0.0f;
    params.scale = scale_or_one(std::ldexp(1.0f, bits) / (high - low));
    params.offset = high * 0.5f + low * 0.5f;
  }
  params.inverse = 1.0f / params.scale;
  return params;
}

inline GroupParams group_params(const float* x, std::int64_t size, int bits, bool symmetric) {
  float low = INFINITY, high = -INFINITY, absolute = 0.0f;
  bool nan = false;
  for (std::int64_t i = 0; i < size; ++i) {
    low = x[i] < low ? x[i] : low;
    high = x[i] > high ? x[i] : high;
    absolute = std::fabs(x[i]) > absolute ? std::fabs(x[i]) : absolute;
    nan |= x[i] != x[i];
  }
  if (nan) low = high = absolute = NAN;
  return params_of(low, high, absolute, bits, symmetric);
}

// As the hardware compares: a NaN gives the other operand.
inline float at_least(float x, float low) {
  return x > low ? x : low;
}
inline float at_most(float x, float high) {
  return x < high ? x : high;
}

// A whole number, kept in a float. `random16` is used only where stochastic.
inline float code_of(float x, const GroupParams& params, int bits, bool symmetric, bool stochastic,
                     std::uint32_t random16) {
  const float low = -std::ldexp(1.0f, bits - 1);
  const float high = -low - 1.0f;
  if (!symmetric) x = x - params.offset;
  // A code has one zero: + 0 makes it the positive one.
  if (!stochastic) return std::nearbyint(at_least(at_most(x * params.scale, high), low)) + 0.0f;
  // 128 more: there u is a whole number of the float's last bit, and one operation adds it.
  const float u = 128.0f + static_cast<float>(random16) * 0x1p-16f;
  const float code = std::floor(std::fma(x, params.scale, u)) - 128.0f;
  return at_least(at_most(code, high), low) + 0.0f;
}

inline float value_of(float code, float inverse, float offset, bool symmetric) {
  const float product = code * inverse;
  return symmetric ? product : product + offset;
}

template <class T>
std::vector<float> widened(const T* from, std::int64_t size) {
  std::vector<float> to(static_cast<std::size_t>(size));
  for (std::int64_t i = 0; i < size; ++i) to[static_cast<std::size_t>(i)] = to_float(from[i]);
  return to;
}

inline void put_code(std::uint8_t* codes, std::int64_t i, int bits, float code) {
  const auto value = static_cast<std::uint8_t>(static_cast<std::int32_t>(code));
  if (bits == 8) {
    codes[i] = value;
  } else if (i % 2 == 0) {
    codes[i / 2] = static_cast<std::uint8_t>(value << 4 | (codes[i / 2] & 0x0f));
  } else {
    codes[i / 2] = static_cast<std::uint8_t>((codes[i / 2] & 0xf0) | (value & 0x0f));
  }
}

inline float get_code(const std::uint8_t* codes, std::int64_t i, int bits) {
  if (bits == 8) return static_cast<float>(static_cast<std::int8_t>(codes[i]));
  const int nibble = i % 2 == 0 ? codes[i / 2] >> 4 : codes[i / 2] & 0x0f;
  return static_cast<float>(nibble < 8 ? nibble : nibble - 16);
}

inline std::int64_t swizzled_group(std::int64_t group, std::int64_t groups, const Swizzle& s) {
  const std::int64_t together = groups / (s.nodes * s.devices * s.pipeline);
  const std::int64_t within = group % together;
  const std::int64_t slice = group / together % s.pipeline;
  const std::int64_t partition = group / together / s.pipeline;
  const std::int64_t to = partition % s.devices * s.nodes + partition / s.devices;
  return (slice * s.nodes * s.devices + to) * together + within;
}

inline void put_params(float* params, std::int64_t group, const GroupParams& of, bool symmetric) {
  if (symmetric) {
    params[group] = of.inverse;
  } else {
    params[2 * group] = of.inverse;
    params[2 * group + 1] = of.offset;
  }
}

// Quantizes the sums s of one group, which go to group `to`, and folds what is lost into `error`.
template <class T>
void quantize_group(const std::vector<float>& s, std::int64_t to, const QuantFormat& format,
                    std::uint8_t* codes, float* params, T* error, float beta) {
  const auto size = static_cast<std::int64_t>(s.size());
  const GroupParams p = group_params(s.data(), size, format.bits, format.symmetric);
  put_params(params, to, p, format.symmetric);
  const float rest = 1.0f - beta;
  for (std::int64_t i = 0; i < size; ++i) {
    const float x = s[static_cast<std::size_t>(i)];
    const float code = code_of(x, p, format.bits, format.symmetric, false, 0);
    put_code(codes, to * size + i, format.bits, code);
    if (error == nullptr) continue;
    T& e = error[to * size + i];
    const float lost = x - value_of(code, p.inverse, p.offset, format.symmetric);
    from_float(beta * to_float(e) + rest * lost, e);
  }
}

template <class T>
void quantize(const QuantizeCall& call) {
  const T* input = static_cast<const T*>(call.input);
  T* error = static_cast<T*>(call.error);
  for (std::int64_t g = 0; g < call.groups; ++g) {
    const std::int64_t to = swizzled_group(g, call.groups, call.swizzle);
    std::vector<float> s = widened(input + g * call.group_size, call.group_size);
    if (error != nullptr) {
      const std::vector<float> e = widened(error + to * call.group_size, call.group_size);
      for (std::size_t i = 0; i < s.size(); ++i) s[i] += e[i];
    }
    quantize_group(s, to, call.format, call.codes, call.params, error, call.error_beta);
  }
}

template <class T>
void dequantize(const DequantizeCall& call) {
  const bool symmetric = call.format.symmetric;
  T* output = static_cast<T*>(call.output);
  for (std::int64_t i = 0; i < call.groups * call.group_size; ++i) {
    const std::int64_t g = i / call.group_size;
    const float inverse = call.params[symmetric ? g : 2 * g];
    const float offset = symmetric ? 0.0f : call.params[2 * g + 1];
    from_float(value_of(get_code(call.codes, i, call.format.bits), inverse, offset, symmetric),
               output[i]);
  }
}

template <class T>
void fake_quantize(const FakeQuantizeCall& call) {
  T* values = static_cast<T*>(call.values);
  for (std::int64_t g = 0; g < call.groups; ++g) {
    const std::int64_t first = g * call.group_size;
    const std::vector<float> x = widened(values + first, call.group_size);
    const GroupParams p = group_params(x.data(), call.group_size, call.bits, call.symmetric);
    for (std::int64_t i = 0; i < call.group_size; ++i) {
      std::uint32_t random16 = 0;
      if (call.stochastic) {
        const auto index = static_cast<std::uint64_t>(first + i);
        random16 = sixteen_bits(philox(call.random.seed, index / 8, call.random.offset),
                                static_cast<int>(index % 8));
      }
      const float code = code_of(x[static_cast<std::size_t>(i)], p, call.bits, call.symmetric,
                                 call.stochastic, random16);
      from_float(value_of(code, p.inverse, p.offset, call.symmetric), values[first + i]);
    }
  }
}

// T is the type of the error feedback.
template <class T>
void quantized_reduce(const ReduceCall& call) {
  const bool symmetric = call.format.symmetric;
  const std::int64_t in_size = call.in_groups > 0 ? call.size / call.in_groups : 0;
  const std::int64_t out_size = call.out_groups > 0 ? call.size / call.out_groups : 0;
  T* error = static_cast<T*>(call.error);
  std::vector<float> sums(static_cast<std::size_t>(out_size));
  for (std::int64_t g = 0; g < call.out_groups; ++g) {
    for (std::int64_t i = 0; i < out_size; ++i) {
      const std::int64_t at = g * out_size + i;
      float sum = 0.0f;
      for (std::int64_t t = 0; t < call.tensors; ++t) {
        const std::int64_t in_group = t * call.in_groups + at / in_size;
        const float inverse = call.params[symmetric ? in_group : 2 * in_group];
        const float offset = symmetric ? 0.0f : call.params[2 * in_group + 1];
        const float code = get_code(call.codes, t * call.size + at, call.format.bits);
        // One rounding, where the device has one instruction for it.
        sum = symmetric ? std::fma(code, inverse, sum) : sum + std::fma(code, inverse, offset);
      }
      if (error != nullptr) sum += to_float(error[at]);
      sums[static_cast<std::size_t>(i)] = sum;
    }
    quantize_group(sums, g, call.format, call.out_codes, call.out_params, error, call.error_beta);
  }
}

inline void int_to_half(const IntToHalfCall& call) {
  for (std::int64_t i = 0; i < call.groups * call.group_size; ++i) {
    const std::int64_t g = i / call.group_size;
    const int code = call.bits == 8 ? call.codes[i]
                     : i % 2 == 0   ? call.codes[i / 2] >> 4
                                    : call.codes[i / 2] & 0x0f;
    f16 quotient, sum;
    from_float(static_cast<float>(code) / to_float(f16{call.scales[g]}), quotient);
    from_float(to_float(quotient) + to_float(f16{call.minimums[g]}), sum);
    call.output[i] = sum.bits;
  }
}

}  // namespace ds::reference

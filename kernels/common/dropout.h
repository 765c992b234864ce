#pragma once

// Which elements a dropout keeps: pure functions of an index.

#include <cmath>
#include <cstdint>

#include "philox.h"

namespace ds {

// An element is dropped if its 16 bits are below `threshold`, else multiplied by `factor`.
struct DropoutPlan {
  std::uint32_t threshold = 0;  // 0: there is no dropout.
  float factor = 1.0f;          // 1 / the probability that it stays.
  RandomSource source;
};

// ratio is at least 0 and less than 1, and is met to 2^-16.
inline DropoutPlan plan_dropout(double ratio, const RandomSource& source) {
  const double most = 65535.0, steps = std::floor(ratio * 65536.0 + 0.5);
  const double threshold = steps < most ? steps : most;
  return {static_cast<std::uint32_t>(threshold),
          static_cast<float>(65536.0 / (65536.0 - threshold)), source};
}

// What the eight elements from 8·group on are multiplied by.
inline void dropout_factors(const DropoutPlan& plan, std::int64_t group, float* factors) {
  const Philox random =
      philox(plan.source.seed, static_cast<std::uint64_t>(group), plan.source.offset);
  for (int i = 0; i < 8; ++i) {
    factors[i] = sixteen_bits(random, i) < plan.threshold ? 0.0f : plan.factor;
  }
}

// The index of the first score of a row of `keys`: rows begin at multiples of eight.
inline std::int64_t first_score(std::int64_t row, std::int64_t keys) {
  return row * ((keys + 7) / 8 * 8);
}

}  // namespace ds

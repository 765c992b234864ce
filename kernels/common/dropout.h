#pragma once

// Which elements a dropout keeps: pure functions of an index.

#include <cmath>
#include <cstdint>
#include <cstring>

#include "half.h"
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

// The same of 64 elements: the rounds of philox.h for eight counters side by side, in vectors of
// the code path that this is inlined into. (A loop over eight philox_round() is not made into
// vectors.)
DS_INLINE void dropout_factors_of_64(const DropoutPlan& plan, std::int64_t group, float* factors) {
  using Words __attribute__((vector_size(32))) = std::uint32_t;
  using Products __attribute__((vector_size(64))) = std::uint64_t;
  constexpr int kGroups = 8;
  Words c0, c1, c2 = Words{} + static_cast<std::uint32_t>(plan.source.offset);
  Words c3 = Words{} + static_cast<std::uint32_t>(plan.source.offset >> 32);
  for (int i = 0; i < kGroups; ++i) {
    const auto counter = static_cast<std::uint64_t>(group + i);
    c0[i] = static_cast<std::uint32_t>(counter);
    c1[i] = static_cast<std::uint32_t>(counter >> 32);
  }
  PhiloxKey key(plan.source.seed);
  for (int round = 0; round < kPhiloxRounds; ++round, key.next()) {
    const Products a = __builtin_convertvector(c0, Products) * std::uint64_t{kPhiloxFactor0};
    const Products b = __builtin_convertvector(c2, Products) * std::uint64_t{kPhiloxFactor1};
    c0 = __builtin_convertvector(b >> 32, Words) ^ c1 ^ key.k0;
    c1 = __builtin_convertvector(b, Words);
    c2 = __builtin_convertvector(a >> 32, Words) ^ c3 ^ key.k1;
    c3 = __builtin_convertvector(a, Words);
  }
  std::uint32_t words[4 * kGroups];
  for (int i = 0; i < kGroups; ++i) {
    words[4 * i] = c0[i], words[4 * i + 1] = c1[i];
    words[4 * i + 2] = c2[i], words[4 * i + 3] = c3[i];
  }
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "sixteen_bits() counts from the lowest");
  using Halves __attribute__((vector_size(32))) = std::uint16_t;
  using Wide __attribute__((vector_size(64))) = std::uint32_t;
  for (int i = 0; i < 4 * kGroups; i += 8) {
    Halves bits;
    std::memcpy(&bits, words + i, sizeof bits);
    const auto stays = (Wide)(__builtin_convertvector(bits, Wide) >= Wide{} + plan.threshold);
    const Wide kept = stays & (Wide{} + float_bits(plan.factor));
    std::memcpy(factors + 2 * i, &kept, sizeof kept);
  }
}

// The index of the first score of a row of `keys`: rows begin at multiples of eight.
inline std::int64_t first_score(std::int64_t row, std::int64_t keys) {
  return row * ((keys + 7) / 8 * 8);
}

}  // namespace ds

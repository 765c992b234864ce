#pragma once

// Philox4x32 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11): four 32-bit
// words that depend on a counter and a key alone, so a value's randomness follows from its index
// and not from the thread that meets it. Seven rounds, the fewest that pass the paper's tests of
// randomness, because rounding at the speed of memory leaves no time for ten.

#include <cstdint>

#include "ds_op.h"

namespace ds {

struct Philox {
  std::uint32_t word[4];
};

inline constexpr int kPhiloxRounds = 7;
inline constexpr std::uint32_t kPhiloxFactor0 = 0xD2511F53u, kPhiloxFactor1 = 0xCD9E8D57u;

struct PhiloxKey {
  std::uint32_t k0, k1;

  DS_HOST_DEVICE explicit PhiloxKey(std::uint64_t key)
      : k0(static_cast<std::uint32_t>(key)), k1(static_cast<std::uint32_t>(key >> 32)) {}
  DS_HOST_DEVICE void next() {
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
};

DS_HOST_DEVICE inline std::uint64_t philox_product(std::uint32_t a, std::uint32_t b) {
#if defined(__CUDA_ARCH__)
  // Of a product of 64 bits nvcc adds the upper halves' too, which are 0: an addition a product.
  std::uint64_t product;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
  return product;
#else
  return std::uint64_t{a} * b;
#endif
}

DS_HOST_DEVICE inline void philox_round(const PhiloxKey& key, std::uint32_t& c0, std::uint32_t& c1,
                                        std::uint32_t& c2, std::uint32_t& c3) {
  const std::uint64_t a = philox_product(kPhiloxFactor0, c0);
  const std::uint64_t b = philox_product(kPhiloxFactor1, c2);
  c0 = static_cast<std::uint32_t>(b >> 32) ^ c1 ^ key.k0;
  c1 = static_cast<std::uint32_t>(b);
  c2 = static_cast<std::uint32_t>(a >> 32) ^ c3 ^ key.k1;
  c3 = static_cast<std::uint32_t>(a);
}

template <int kRounds = kPhiloxRounds>
DS_HOST_DEVICE inline Philox philox(std::uint64_t key, std::uint64_t counter_low,
                                    std::uint64_t counter_high) {
  PhiloxKey k(key);
  auto c0 = static_cast<std::uint32_t>(counter_low);
  auto c1 = static_cast<std::uint32_t>(counter_low >> 32);
  auto c2 = static_cast<std::uint32_t>(counter_high);
  auto c3 = static_cast<std::uint32_t>(counter_high >> 32);
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
  for (int round = 0; round < kRounds; ++round, k.next()) philox_round(k, c0, c1, c2, c3);
  return {{c0, c1, c2, c3}};
}

// Where the randomness of a call comes from: element i of a tensor takes 16 bits of
// philox(seed, i / 8, offset). Calls with another seed or offset are independent. With `device`,
// the two numbers are read there when the kernel runs, so that a CUDA graph can be replayed with
// new ones.
struct RandomSource {
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;
  const std::uint64_t* device = nullptr;  // {seed, offset} where the op computes, or null.
};

// The source with its numbers read, where they lie in memory that the caller sees.
inline RandomSource resolved(RandomSource source) {
  if (source.device != nullptr) source = {source.device[0], source.device[1], nullptr};
  return source;
}

// The 16 bits of element `i` of the eight that one call serves.
DS_HOST_DEVICE inline std::uint32_t sixteen_bits(const Philox& random, int i) {
  return random.word[i / 2] >> (i % 2 * 16) & 0xffffu;
}

}  // namespace ds

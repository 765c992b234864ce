// Groups of numbers to codes and back, for the code path DS_ISA. A run of numbers is worked on in
// blocks that stay in the first cache as floats.

#include "group_blocks.h"

namespace ds::DS_ISA {
namespace {

using quantizer::DecodeRun;
using quantizer::EncodeRun;
using quantizer::FakeRun;
using quantizer::Rounding;

// 1.5·2^23: the sum with it is rounded to a whole number, to nearest even, which is in its lowest
// bits.
inline constexpr float kMagic = 12582912.0f;

// A NaN becomes the highest code.
DS_TARGET DS_INLINE Vec clamped(Vec x, Vec lowest, Vec highest) {
  return larger(smaller(x, highest), lowest);
}

// A Rounding in registers.
struct Numbers {
  Vec scale, inverse, offset, lowest, highest, magic;

  DS_TARGET DS_INLINE explicit Numbers(const Rounding& r)
      : scale(set1(r.params.scale)),
        inverse(set1(r.params.inverse)),
        offset(set1(r.params.offset)),
        lowest(set1(r.lowest)),
        highest(set1(r.highest)),
        magic(set1(kMagic)) {}
  // With the code in its lowest bits, kMagic above it.
  DS_TARGET DS_INLINE Vec rounded(Vec x) const {
    return clamped((x - offset) * scale, lowest, highest) + magic;
  }
  // From what rounded() gives.
  DS_TARGET DS_INLINE Vec back(Vec rounded) const { return (rounded - magic) * inverse + offset; }
};

// n codes of a block.
DS_TARGET DS_INLINE void pack(const std::uint8_t* bytes, int bits, std::int64_t n,
                              std::uint8_t* codes) {
  if (bits == 8) {
    std::memcpy(codes, bytes, static_cast<std::size_t>(n));
    return;
  }
  BlockPairs pairs;
  std::memcpy(&pairs, bytes, sizeof pairs);
  pairs = (pairs << 4 & 0xf0) | (pairs >> 8 & 0x0f);
  const HalfBlock packed = __builtin_convertvector(pairs, HalfBlock);
  std::memcpy(codes, &packed, static_cast<std::size_t>(n / 2));
}

template <bool kSigned>
DS_TARGET DS_INLINE void unpack(const std::uint8_t* codes, int bits, std::int64_t n,
                                std::uint8_t* bytes) {
  if (bits == 8) {
    std::memcpy(bytes, codes, static_cast<std::size_t>(n));
    return;
  }
  HalfBlock packed{};
  std::memcpy(&packed, codes, static_cast<std::size_t>(n / 2));
  BlockPairs pairs = __builtin_convertvector(packed, BlockPairs);
  pairs = pairs >> 4 | (pairs & 0x0f) << 8;
  BlockBytes all;
  std::memcpy(&all, &pairs, sizeof all);
  if (kSigned) all = (all ^ 8) - 8;  // In two's complement.
  std::memcpy(bytes, &all, sizeof all);
}

// kLanes codes, of type Code, as numbers.
template <class Code>
DS_TARGET DS_INLINE Vec numbers_of(const std::uint8_t* bytes) {
  return Beside::floats(Beside::load(reinterpret_cast<const Code*>(bytes)));
}

// Sums of a kilobyte lie in the first cache before they are looked at.
inline constexpr int kSeeBlock = 256;

template <class T>
DS_TARGET void see_run(const void* x, const void* error, std::int64_t size, Seen& seen) {
  const T* p = static_cast<const T*>(x);
  if (error == nullptr) return see_values(p, size, seen);
  const T* e = static_cast<const T*>(error);
  float sums[kSeeBlock];
  for (std::int64_t i = 0; i < size; i += kSeeBlock) {
    const std::int64_t n = size - i < kSeeBlock ? size - i : kSeeBlock;
    std::int64_t k = 0;
    for (; k + kLanes <= n; k += kLanes) store(sums + k, load(p + i + k) + load(e + i + k));
    if (k < n) store(sums + k, load(p + i + k, n - k) + load(e + i + k, n - k), n - k);
    see_values(static_cast<const float*>(sums), n, seen);
  }
}

// n of kBlock numbers: x (X), plus error (E) unless kSums. `e` may be null.
template <class X, class E, bool kSums, bool kError, bool kAll>
DS_TARGET DS_INLINE void encode_block(const X* x, E* e, std::int64_t n, const Numbers& numbers,
                                      Vec beta, Vec rest, int bits, std::uint8_t* codes) {
  std::uint8_t bytes[kBlock];
  for (int k = 0; k < kBlock; k += kLanes) {
    Vec s = get<kAll>(x, k, n), error = s;
    if constexpr (kError) {
      error = get<kAll>(static_cast<const E*>(e), k, n);
      if (!kSums) s = s + error;
    }
    const Vec rounded = numbers.rounded(s);
    Beside::store(bytes + k, bits_of<Ints>(rounded));
    if constexpr (kError) {
      put<kAll>(e, k, n, beta * error + rest * (s - numbers.back(rounded)));
    }
  }
  pack(bytes, bits, kAll ? kBlock : n, codes);
}

template <class X, class E, bool kSums, bool kError>
DS_TARGET DS_INLINE void encode(const EncodeRun& of, const Rounding& rounding) {
  const EncodeRun run = of;
  const Numbers numbers(rounding);
  const int bits = rounding.bits;
  const Vec beta = set1(run.beta), rest = set1(1.0f - run.beta);
  const X* x = static_cast<const X*>(run.x);
  E* e = static_cast<E*>(run.error);
  std::uint8_t* codes = run.codes;
  std::int64_t left = run.size;
  for (; left >= kBlock; left -= kBlock) {
    encode_block<X, E, kSums, kError, true>(x, e, kBlock, numbers, beta, rest, bits, codes);
    x += kBlock;
    if (kError) e += kBlock;
    codes += kBlock * bits / 8;
  }
  if (left > 0) {
    encode_block<X, E, kSums, kError, false>(x, e, left, numbers, beta, rest, bits, codes);
  }
}

// kSums: of x, which are sums that the error is part of already.
template <class X, class E, bool kSums>
DS_TARGET void encode_run(const EncodeRun& run, const Rounding& rounding) {
  if (run.error != nullptr) return encode<X, E, kSums, true>(run, rounding);
  encode<X, E, kSums, false>(run, rounding);
}

template <class T, bool kAll>
DS_TARGET DS_INLINE void decode_block(const DecodeRun& run, std::int64_t i, T* output) {
  const std::int64_t n = kAll ? kBlock : run.size - i;
  std::uint8_t bytes[kBlock];
  unpack<true>(run.codes + i * run.bits / 8, run.bits, n, bytes);
  const Vec inverse = set1(run.inverse), offset = set1(run.offset);
  for (int k = 0; k < kBlock; k += kLanes) {
    put<kAll>(output + i, k, n, numbers_of<std::int8_t>(bytes + k) * inverse + offset);
  }
}

template <class T>
DS_TARGET void decode_run(const DecodeRun& of, void* output) {
  const DecodeRun run = of;
  T* to = static_cast<T*>(output);
  std::int64_t i = 0;
  for (; i + kBlock <= run.size; i += kBlock) decode_block<T, true>(run, i, to);
  if (i < run.size) decode_block<T, false>(run, i, to);
}

// x rounded down; of numbers that are no larger than 2^22.
DS_TARGET DS_INLINE Vec floor_of(Vec x, Vec magic) {
  const Vec nearest = (x + magic) - magic;
  return nearest > x ? nearest - set1(1.0f) : nearest;
}

// 128 and the 16 bits behind the point.
DS_TARGET DS_INLINE Vec above_128(const std::uint16_t* random) {
  return bits_of<Vec>(Beside::load(random) | 0x43000000);
}

template <class T, bool kStochastic, bool kAll>
DS_TARGET DS_INLINE void fake_block(T* values, std::int64_t n, const std::uint16_t* random,
                                    const Numbers& numbers) {
  for (int k = 0; k < kBlock; k += kLanes) {
    const Vec x = get<kAll>(static_cast<const T*>(values), k, n);
    if constexpr (kStochastic) {
      const Vec sum = fused(x - numbers.offset, numbers.scale, above_128(random + k));
      const Vec down = floor_of(sum, numbers.magic) - set1(128.0f);
      const Vec code = clamped(down, numbers.lowest, numbers.highest) + set1(0.0f);
      put<kAll>(values, k, n, code * numbers.inverse + numbers.offset);
    } else {
      put<kAll>(values, k, n, numbers.back(numbers.rounded(x)));
    }
  }
}

template <class T, bool kStochastic>
DS_TARGET DS_INLINE void fake(const FakeRun& of, const Rounding& rounding) {
  const FakeRun run = of;
  const Numbers numbers(rounding);
  T* values = static_cast<T*>(run.values);
  std::uint16_t random[kRandom];
  for (std::int64_t i = 0; i < run.size; i += kBlock) {
    if (kStochastic && i % kRandom == 0) {
      random_block(run.seed, run.offset, run.first + static_cast<std::uint64_t>(i), random);
    }
    if (i + kBlock <= run.size) {
      fake_block<T, kStochastic, true>(values + i, kBlock, random + i % kRandom, numbers);
    } else {
      fake_block<T, kStochastic, false>(values + i, run.size - i, random + i % kRandom, numbers);
    }
  }
}

template <class T>
DS_TARGET void fake_run(const FakeRun& run, const Rounding& rounding) {
  if (run.stochastic) return fake<T, true>(run, rounding);
  fake<T, false>(run, rounding);
}

template <bool kSymmetric, bool kAll>
DS_TARGET DS_INLINE void sum_block(const DecodeRun& run, std::int64_t i, float* sums) {
  const std::int64_t n = kAll ? kBlock : run.size - i;
  std::uint8_t bytes[kBlock];
  unpack<true>(run.codes + i * run.bits / 8, run.bits, n, bytes);
  const Vec inverse = set1(run.inverse), offset = set1(run.offset);
  for (int k = 0; k < kBlock; k += kLanes) {
    const Vec code = numbers_of<std::int8_t>(bytes + k);
    const Vec sum = get<kAll>(static_cast<const float*>(sums + i), k, n);
    put<kAll>(sums + i, k, n,
              kSymmetric ? fused(code, inverse, sum) : sum + fused(code, inverse, offset));
  }
}

DS_TARGET inline void sum_run(const DecodeRun& of, bool symmetric, float* sums) {
  const DecodeRun run = of;
  std::int64_t i = 0;
  for (; i + kBlock <= run.size; i += kBlock) {
    symmetric ? sum_block<true, true>(run, i, sums) : sum_block<false, true>(run, i, sums);
  }
  if (i < run.size) {
    symmetric ? sum_block<true, false>(run, i, sums) : sum_block<false, false>(run, i, sums);
  }
}

template <class T>
DS_TARGET void add_run(const void* error, std::int64_t size, float* sums) {
  const T* e = static_cast<const T*>(error);
  std::int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) store(sums + i, load(sums + i) + load(e + i));
  if (const std::int64_t n = size - i; n > 0) {
    store(sums + i, load(sums + i, n) + load(e + i, n), n);
  }
}

DS_TARGET DS_INLINE Vec rounded_to_half(Vec x) {
  f16 half[kLanes];
  store(half, x);
  return load(static_cast<const f16*>(half));
}

DS_TARGET inline void half_run(const std::uint8_t* codes, int bits, f16 scale, f16 minimum,
                               std::int64_t size, std::uint16_t* output) {
  const Vec by = set1(to_float(scale)), from = set1(to_float(minimum));
  std::uint8_t bytes[kBlock];
  for (std::int64_t i = 0; i < size; i += kBlock) {
    const std::int64_t n = size - i < kBlock ? size - i : kBlock;
    unpack<false>(codes + i * bits / 8, bits, n, bytes);
    for (int k = 0; k < kBlock; k += kLanes) {
      const Vec quotient = rounded_to_half(numbers_of<std::uint8_t>(bytes + k) / by);
      put<false>(reinterpret_cast<f16*>(output + i), k, n, quotient + from);
    }
  }
}

inline const quantizer::CpuKernels& kernels() {
  static const quantizer::CpuKernels all = {
      {see_run<float>, see_run<f16>, see_run<bf16>},
      {encode_run<float, float, false>, encode_run<f16, f16, false>, encode_run<bf16, bf16, false>},
      {encode_run<float, float, true>, encode_run<float, f16, true>, encode_run<float, bf16, true>},
      {decode_run<float>, decode_run<f16>, decode_run<bf16>},
      {fake_run<float>, fake_run<f16>, fake_run<bf16>},
      sum_run,
      {add_run<float>, add_run<f16>, add_run<bf16>},
      half_run};
  return all;
}

}  // namespace
}  // namespace ds::DS_ISA

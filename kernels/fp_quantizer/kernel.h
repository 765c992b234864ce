// Groups of numbers to small floating-point codes and back, for the code path DS_ISA. With whole
// numbers where the reference multiplies into subnormal floats: processors are slow with those, or
// may be told to take them for zeros.

#include "group_blocks.h"

namespace ds::DS_ISA {
namespace {

using fp_quantizer::EncodeRun;

template <int kBits, int kMantissa>
struct Format {
  static constexpr int kExponent = kBits - 1 - kMantissa;
  static constexpr int kBias = (1 << (kExponent - 1)) - 1;
  static constexpr int kDropped = 23 - kMantissa;  // Bits of a float's mantissa.
  static constexpr int kFarther = (127 - kBias)
                                  << kMantissa;  // From a code's exponent to a float's.
  static constexpr std::int32_t kSign = 1 << (kBits - 1);

  static float power(int of_two) { return std::ldexp(1.0f, of_two); }
};

template <int kBits, int kMantissa>
struct Encoder {
  using F = Format<kBits, kMantissa>;
  Vec largest, lowest, grain, scaled, whole;
  Ints grain_bits;

  DS_TARGET DS_INLINE Encoder()
      : largest(set1(reference::largest({kBits, kMantissa}))),
        lowest(set1(F::power(1 - F::kBias))),
        // Added, it rounds a number below `lowest` to its steps, which are in the lowest bits then.
        grain(set1(1.5f * F::power(23 + 1 - F::kBias - kMantissa))),
        scaled(set1(F::power(22 + F::kBias))),
        whole(set1(0x1p23f)),
        grain_bits(bits_of<Ints>(grain)) {}

  DS_TARGET DS_INLINE Ints nearest(Vec magnitude) const {
    const Ints bits = bits_of<Ints>(magnitude);
    const Ints odd = (bits >> F::kDropped) & 1;
    const Ints normal =
        ((bits + ((1 << (F::kDropped - 1)) - 1) + odd) >> F::kDropped) - F::kFarther;
    const Ints subnormal = bits_of<Ints>(magnitude + grain) - grain_bits;
    return magnitude < lowest ? subnormal : normal;
  }
  // Of a float that is `magnitude` times a power of two the top is the code; so much of what lies
  // below is added that it carries into it in proportion.
  DS_TARGET DS_INLINE Ints stochastic(Vec magnitude, Ints random) const {
    const Ints normal = bits_of<Ints>(magnitude) - (F::kFarther << F::kDropped);
    const Ints subnormal = bits_of<Ints>(magnitude * scaled + whole) - 0x4b000000;
    const Ints bits = magnitude < lowest ? subnormal : normal;
    return (bits + (random << (7 - kMantissa))) >> F::kDropped;
  }
  template <bool kStochastic>
  DS_TARGET DS_INLINE Ints operator()(Vec y, const std::uint16_t* random) const {
    const Ints bits = bits_of<Ints>(y);
    const Vec magnitude = smaller(bits_of<Vec>(bits & 0x7fffffff), largest);
    const Ints code =
        kStochastic ? stochastic(magnitude, Beside::load(random)) : nearest(magnitude);
    return code | (bits < 0 ? Ints{} + F::kSign : Ints{});
  }
};

// The codes of a block, n of which are meant, to its bytes: the first in the lowest bits.
template <int kBits>
DS_TARGET DS_INLINE void pack(const std::int32_t* codes, std::int64_t n, std::uint8_t* to) {
  std::uint8_t bytes[kBlock * kBits / 8 + 1];
  if constexpr (kBits == 8) {
    for (int k = 0; k < kBlock; k += kLanes) {
      Ints some;
      std::memcpy(&some, codes + k, sizeof some);
      Beside::store(bytes + k, some);
    }
  } else {
    constexpr int kCodes = 24 / kBits;  // Of three bytes.
    for (int i = 0; i < kBlock / kCodes; ++i) {
      std::uint32_t word = 0;
      for (int c = 0; c < kCodes; ++c) {
        word |= static_cast<std::uint32_t>(codes[i * kCodes + c]) << (c * kBits);
      }
      std::memcpy(bytes + 3 * i, &word, sizeof word);
    }
  }
  std::memcpy(to, bytes, static_cast<std::size_t>(n * kBits / 8));
}
template <>
DS_TARGET DS_INLINE void pack<4>(const std::int32_t* codes, std::int64_t n, std::uint8_t* to) {
  std::uint8_t bytes[kBlock];
  for (int k = 0; k < kBlock; k += kLanes) {
    Ints some;
    std::memcpy(&some, codes + k, sizeof some);
    Beside::store(bytes + k, some);
  }
  BlockPairs pairs;
  std::memcpy(&pairs, bytes, sizeof pairs);
  pairs = (pairs & 0x0f) | (pairs >> 4 & 0xf0);
  const HalfBlock packed = __builtin_convertvector(pairs, HalfBlock);
  std::memcpy(to, &packed, static_cast<std::size_t>(n / 2));
}

template <class T, int kBits, int kMantissa, bool kStochastic>
DS_TARGET DS_INLINE void encode(const EncodeRun& of) {
  const EncodeRun run = of;
  const Encoder<kBits, kMantissa> encoder;
  const Vec factor = set1(run.factor);
  const T* x = static_cast<const T*>(run.x);
  std::uint16_t random[kRandom];
  std::int32_t codes[kBlock];
  const auto block = [&](auto all, std::int64_t i, std::int64_t n) DS_TARGET {
    const std::uint16_t* r = random + i % kRandom;
    for (int k = 0; k < kBlock; k += kLanes) {
      const Vec y = get<decltype(all)::value>(x + i, k, n) * factor;
      const Ints some = encoder.template operator()<kStochastic>(y, r + k);
      std::memcpy(codes + k, &some, sizeof some);
    }
    pack<kBits>(codes, n, run.codes + i * kBits / 8);
  };
  for (std::int64_t i = 0; i < run.size; i += kBlock) {
    if (kStochastic && i % kRandom == 0) {
      random_block(run.seed, run.offset, run.first + static_cast<std::uint64_t>(i), random);
    }
    if (i + kBlock <= run.size) {
      block(std::true_type{}, i, kBlock);
    } else {
      block(std::false_type{}, i, run.size - i);
    }
  }
}

template <class T, int kBits, int kMantissa>
DS_TARGET void encode_run(const EncodeRun& run) {
  if (run.stochastic) return encode<T, kBits, kMantissa, true>(run);
  encode<T, kBits, kMantissa, false>(run);
}

// The codes of n numbers of a block; behind them anything.
template <int kBits>
DS_TARGET DS_INLINE void unpack(const std::uint8_t* from, std::int64_t n, std::int32_t* codes) {
  std::uint8_t bytes[kBlock * kBits / 8 + 1] = {};
  if (n < kBlock || kBits == 12 || kBits == 6) {
    std::memcpy(bytes, from, static_cast<std::size_t>(n * kBits / 8));
    from = bytes;
  }
  if constexpr (kBits == 8) {
    for (int k = 0; k < kBlock; k += kLanes) {
      const Ints some = Beside::load(from + k);
      std::memcpy(codes + k, &some, sizeof some);
    }
  } else if constexpr (kBits == 4) {
    HalfBlock packed;
    std::memcpy(&packed, from, sizeof packed);
    BlockPairs pairs = __builtin_convertvector(packed, BlockPairs);
    pairs = (pairs & 0x0f) | (pairs >> 4) << 8;
    std::uint8_t spread[kBlock];
    std::memcpy(spread, &pairs, sizeof spread);
    for (int k = 0; k < kBlock; k += kLanes) {
      const Ints some = Beside::load(static_cast<const std::uint8_t*>(spread) + k);
      std::memcpy(codes + k, &some, sizeof some);
    }
  } else {
    constexpr int kCodes = 24 / kBits;
    for (int i = 0; i < kBlock / kCodes; ++i) {
      std::uint32_t word;
      std::memcpy(&word, from + 3 * i, sizeof word);
      for (int c = 0; c < kCodes; ++c) {
        codes[i * kCodes + c] =
            static_cast<std::int32_t>(word >> (c * kBits) & ((1u << kBits) - 1));
      }
    }
  }
}

template <int kBits, int kMantissa>
DS_TARGET DS_INLINE Vec decoded(Ints code) {
  using F = Format<kBits, kMantissa>;
  const Ints magnitude = code & (F::kSign - 1);
  const Vec normal = bits_of<Vec>((magnitude + F::kFarther) << F::kDropped);
  const Vec subnormal = Beside::floats(magnitude) * set1(F::power(1 - F::kBias - kMantissa));
  const Vec value = magnitude < (1 << kMantissa) ? subnormal : normal;
  return bits_of<Vec>(bits_of<Ints>(value) | (code & F::kSign) << (32 - kBits));
}

template <class T, int kBits, int kMantissa>
DS_TARGET void decode_run(const std::uint8_t* from, float scale, std::int64_t size, void* output) {
  T* to = static_cast<T*>(output);
  const Vec by = set1(scale);
  std::int32_t codes[kBlock];
  const auto block = [&](auto all, std::int64_t i, std::int64_t n) DS_TARGET {
    unpack<kBits>(from + i * kBits / 8, n, codes);
    for (int k = 0; k < kBlock; k += kLanes) {
      Ints some;
      std::memcpy(&some, codes + k, sizeof some);
      put<decltype(all)::value>(to + i, k, n, decoded<kBits, kMantissa>(some) * by);
    }
  };
  std::int64_t i = 0;
  for (; i + kBlock <= size; i += kBlock) block(std::true_type{}, i, kBlock);
  if (i < size) block(std::false_type{}, i, size - i);
}

template <class T>
DS_TARGET void see_run(const void* x, std::int64_t size, Seen& seen) {
  see_values(static_cast<const T*>(x), size, seen);
}

template <int kBits, int kMantissa>
fp_quantizer::CpuKernels kernels_of() {
  return {{see_run<float>, see_run<f16>, see_run<bf16>},
          {encode_run<float, kBits, kMantissa>, encode_run<f16, kBits, kMantissa>,
           encode_run<bf16, kBits, kMantissa>},
          {decode_run<float, kBits, kMantissa>, decode_run<f16, kBits, kMantissa>,
           decode_run<bf16, kBits, kMantissa>}};
}

inline fp_quantizer::CpuKernels kernels(const FloatFormat& format) {
  if (format.bits == 12) return kernels_of<12, 7>();
  if (format.bits == 8 && format.mantissa == 3) return kernels_of<8, 3>();
  if (format.bits == 8) return kernels_of<8, 2>();
  if (format.bits == 6) return kernels_of<6, 2>();
  return kernels_of<4, 1>();
}

}  // namespace
}  // namespace ds::DS_ISA

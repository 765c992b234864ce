// What the CPU ops that treat a tensor in groups share, for the code path DS_ISA: blocks of kBlock
// elements, what is seen of a group's values, random bits. Included by an op's kernel file, which
// for_each_isa.h compiles once per path; hence no #pragma once.
//
// Whole numbers and bytes are the compiler's vectors, which it splits where a path has narrower
// registers; what it has no operator for is simd.h's.

namespace ds::DS_ISA {
namespace {

template <class Element, int kCount>
struct VectorOf {
  typedef Element type __attribute__((vector_size(sizeof(Element) * kCount)));
};
template <class Element>
struct VectorOf<Element, 1> {
  using type = Element;
};

using Ints = typename VectorOf<std::int32_t, kLanes>::type;  // As many as a Vec has floats.

// A block is the bytes of the widest register.
inline constexpr int kBlock = 64;
using BlockBytes = typename VectorOf<std::uint8_t, kBlock>::type;
using BlockPairs = typename VectorOf<std::uint16_t, kBlock / 2>::type;
using HalfBlock = typename VectorOf<std::uint8_t, kBlock / 2>::type;

template <class To, class From>
DS_TARGET DS_INLINE To bits_of(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// Elements i to i + kLanes of the n of a block, n <= kBlock; behind them zeros. kAll: n is kBlock.
template <bool kAll, class T>
DS_TARGET DS_INLINE Vec get(const T* p, int i, std::int64_t n) {
  if (kAll || i + kLanes <= n) return load(p + i);
  return i < n ? load(p + i, n - i) : set1(0.0f);
}
template <bool kAll, class T>
DS_TARGET DS_INLINE void put(T* p, int i, std::int64_t n, Vec x) {
  if (kAll || i + kLanes <= n) {
    store(p + i, x);
  } else if (i < n) {
    store(p + i, x, n - i);
  }
}

// The second where either is NaN.
DS_TARGET DS_INLINE Vec smaller(Vec a, Vec b) {
  return a < b ? a : b;
}
DS_TARGET DS_INLINE Vec larger(Vec a, Vec b) {
  return a > b ? a : b;
}

// Whole numbers beside kCount floats: from and to narrower ones in memory. By way of 16 bits,
// because GCC 12 takes the elements one by one where the width changes by more than two.
template <int kCount>
struct Lanes {
  using Whole = typename VectorOf<std::int32_t, kCount>::type;
  using Floats = typename VectorOf<float, kCount>::type;

  template <class Narrow>
  using Middle =
      typename VectorOf<std::conditional_t<std::is_signed_v<Narrow>, std::int16_t, std::uint16_t>,
                        kCount>::type;

  template <class Narrow>
  DS_TARGET DS_INLINE static Whole load(const Narrow* from) {
    typename VectorOf<Narrow, kCount>::type narrow;
    std::memcpy(&narrow, from, sizeof narrow);
    return __builtin_convertvector(__builtin_convertvector(narrow, Middle<Narrow>), Whole);
  }
  // Their lowest bits.
  template <class Narrow>
  DS_TARGET DS_INLINE static void store(Narrow* to, Whole x) {
    const auto narrow = __builtin_convertvector(__builtin_convertvector(x, Middle<Narrow>),
                                                typename VectorOf<Narrow, kCount>::type);
    std::memcpy(to, &narrow, sizeof narrow);
  }
  DS_TARGET DS_INLINE static Floats floats(Whole x) { return __builtin_convertvector(x, Floats); }
};
template <>
struct Lanes<1> {
  template <class Narrow>
  static std::int32_t load(const Narrow* from) {
    return *from;
  }
  template <class Narrow>
  static void store(Narrow* to, std::int32_t x) {
    *to = static_cast<Narrow>(x);
  }
  static float floats(std::int32_t x) { return static_cast<float>(x); }
};
using Beside = Lanes<kLanes>;  // A Vec.

// How numbers are compared as whole numbers, of either width: their bits, the lower ones of
// negative numbers turned over. Every NaN is above infinity or below minus infinity.
template <class Int>
DS_TARGET DS_INLINE Int ordered(Int bits) {
  constexpr int kSign = sizeof(Int) * 8 - 1;
  return static_cast<Int>(bits ^ ((bits >> kSign) & std::numeric_limits<Int>::max()));
}

// What is seen of numbers as whole numbers of a width.
template <class Int>
struct SeenBits {
  static constexpr int kCount = 64 / sizeof(Int);
  using V = typename VectorOf<Int, kCount>::type;
  V high, low;

  DS_TARGET DS_INLINE SeenBits()
      : high(V{} + std::numeric_limits<Int>::min()), low(V{} + std::numeric_limits<Int>::max()) {}
  DS_TARGET DS_INLINE void see(const V& bits) {
    constexpr int kSign = sizeof(Int) * 8 - 1;
    const V key = bits ^ ((bits >> kSign) & std::numeric_limits<Int>::max());  // ordered()
    high = key > high ? key : high;
    low = key < low ? key : low;
  }
  DS_TARGET DS_INLINE void add_to(Int& highest, Int& lowest) const {
    for (int k = 0; k < kCount; ++k) {
      highest = high[k] > highest ? high[k] : highest;
      lowest = low[k] < lowest ? low[k] : lowest;
    }
  }
};

template <class Int, class T>
DS_TARGET DS_INLINE void see_all(const T* p, std::int64_t size, Int& high, Int& low) {
  SeenBits<Int> seen;
  constexpr int kCount = SeenBits<Int>::kCount;
  typename SeenBits<Int>::V bits;
  std::int64_t i = 0;
  for (; i + kCount <= size; i += kCount) {
    std::memcpy(&bits, p + i, sizeof bits);
    seen.see(bits);
  }
  if (i < size) {  // The rest, and the first of it again and again.
    Int rest[kCount];
    for (int k = 0; k < kCount; ++k) {
      std::memcpy(rest + k, p + (k < size - i ? i + k : i), sizeof(Int));
    }
    std::memcpy(&bits, rest, sizeof bits);
    seen.see(bits);
  }
  seen.add_to(high, low);
}

// Adds `size` elements to what was seen.
template <class T>
DS_TARGET DS_INLINE void see_values(const T* p, std::int64_t size, Seen& seen) {
  if constexpr (sizeof(T) == 4) {
    see_all<std::int32_t>(p, size, seen.high, seen.low);
  } else {
    // In the type's own order, which is that of the numbers.
    std::int16_t high = std::numeric_limits<std::int16_t>::min();
    std::int16_t low = std::numeric_limits<std::int16_t>::max();
    see_all<std::int16_t>(p, size, high, low);
    for (const std::int16_t key : {high, low}) {
      T value;
      value.bits = static_cast<std::uint16_t>(ordered(key));
      const auto bits = static_cast<std::int32_t>(float_bits(to_float(value)));
      const std::int32_t wide = ordered(bits);
      seen.high = wide > seen.high ? wide : seen.high;
      seen.low = wide < seen.low ? wide : seen.low;
    }
  }
}

// random[i] is the 16 bits of element `first` + i, for i in [0, kRandom): sixteen_bits() of
// philox.h.
inline constexpr int kRandom = 256;
DS_TARGET inline void random_block(std::uint64_t seed, std::uint64_t offset, std::uint64_t first,
                                   std::uint16_t* random) {
  constexpr int kCalls = kRandom / 8;
  std::uint32_t c[4][kCalls];
  for (int i = 0; i < kCalls; ++i) {
    const std::uint64_t counter = first / 8 + static_cast<std::uint64_t>(i);
    c[0][i] = static_cast<std::uint32_t>(counter);
    c[1][i] = static_cast<std::uint32_t>(counter >> 32);
    c[2][i] = static_cast<std::uint32_t>(offset);
    c[3][i] = static_cast<std::uint32_t>(offset >> 32);
  }
  PhiloxKey key(seed);
  for (int round = 0; round < kPhiloxRounds; ++round, key.next()) {
    for (int i = 0; i < kCalls; ++i) philox_round(key, c[0][i], c[1][i], c[2][i], c[3][i]);
  }
  std::uint32_t words[kCalls * 4 + 4];
  for (int i = 0; i < kCalls; ++i) {
    for (int w = 0; w < 4; ++w) words[4 * i + w] = c[w][i];
  }
  const auto skip = static_cast<std::size_t>(first % 8);
  if (skip != 0) {
    const Philox last = philox(seed, first / 8 + kCalls, offset);
    std::memcpy(words + 4 * kCalls, last.word, sizeof last.word);
  }
  // The lower half of a word is the first of two numbers, as it lies in memory.
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
  std::memcpy(random, reinterpret_cast<const char*>(words) + 2 * skip,
              kRandom * sizeof(std::uint16_t));
}

}  // namespace
}  // namespace ds::DS_ISA

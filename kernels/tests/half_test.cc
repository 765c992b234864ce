#include "half.h"

#include <gtest/gtest.h>

#include <cmath>

namespace ds {
namespace {

template <class T>
T rounded(float x) {
  T out;
  from_float(x, out);
  return out;
}

// The definition of rounding to nearest even, for every pair of neighbours of the format: each
// number maps to itself, the middle to the even one, and a hair beside the middle to the nearer.
template <class T>
void check_rounding(std::uint16_t infinity) {
  for (std::uint16_t bits = 0; bits < infinity; ++bits) {
    const auto next = static_cast<std::uint16_t>(bits + 1);
    const double low = to_float(T{bits});
    // Infinity stands for the number that would follow, were the exponent one bit longer.
    const double high = next == infinity
                            ? low + (low - to_float(T{static_cast<std::uint16_t>(bits - 1)}))
                            : to_float(T{next});
    const auto middle = static_cast<float>((low + high) / 2);
    ASSERT_EQ(rounded<T>(static_cast<float>(low)).bits, bits);
    ASSERT_EQ(rounded<T>(middle).bits, bits % 2 == 0 ? bits : next) << bits;
    ASSERT_EQ(rounded<T>(std::nextafter(middle, 0.0f)).bits, bits) << bits;
    ASSERT_EQ(rounded<T>(std::nextafter(middle, INFINITY)).bits, next) << bits;
    ASSERT_EQ(rounded<T>(-middle).bits, 0x8000 | (bits % 2 == 0 ? bits : next)) << bits;
  }
}

TEST(Half, F16_rounds_to_nearest_even_between_every_two_numbers) {
  check_rounding<f16>(0x7c00);
}

TEST(Half, Bf16_rounds_to_nearest_even_between_every_two_numbers_that_float_can_split) {
  // The lowest bf16 denormals are float denormals too; their middles are exact.
  check_rounding<bf16>(0x7f80);
}

TEST(Half, Known_numbers) {
  EXPECT_EQ(to_float(f16{0x3c00}), 1.0f);
  EXPECT_EQ(to_float(f16{0xc000}), -2.0f);
  EXPECT_EQ(to_float(f16{0x7bff}), 65504.0f);
  EXPECT_EQ(to_float(f16{0x0001}), 0x1p-24f);
  EXPECT_EQ(to_float(f16{0x0400}), 0x1p-14f);
  EXPECT_EQ(to_float(bf16{0x3f80}), 1.0f);
  EXPECT_EQ(to_float(bf16{0x0001}), 0x1p-133f);
  EXPECT_TRUE(std::signbit(to_float(f16{0x8000})));
}

TEST(Half, Infinity_and_NaN_stay_what_they_are) {
  EXPECT_EQ(rounded<f16>(INFINITY).bits, 0x7c00);
  EXPECT_EQ(rounded<f16>(-INFINITY).bits, 0xfc00);
  EXPECT_EQ(rounded<bf16>(INFINITY).bits, 0x7f80);
  EXPECT_EQ(rounded<f16>(1e30f).bits, 0x7c00);
  // Rounding up a NaN whose payload is all ones must not give zero or infinity.
  for (std::uint32_t payload : {0x00000001u, 0x00400000u, 0x007fffffu}) {
    const float nan = float_from_bits(0x7f800000u | payload);
    EXPECT_TRUE(std::isnan(to_float(rounded<f16>(nan))));
    EXPECT_TRUE(std::isnan(to_float(rounded<bf16>(nan))));
  }
  EXPECT_TRUE(std::isinf(to_float(f16{0x7c00})));
  EXPECT_TRUE(std::isnan(to_float(f16{0x7c01})));
}

}  // namespace
}  // namespace ds

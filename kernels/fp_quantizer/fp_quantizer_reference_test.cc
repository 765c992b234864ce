// The definition itself and the refusals: none of it needs a device.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "plan.h"
#include "reference.h"

namespace ds {
namespace {

constexpr FloatFormat kFormats[] = {{12, 7}, {8, 3}, {8, 2}, {6, 2}, {4, 1}};

TEST(FpQuantizerReference, Ranges_are_those_of_the_formats) {
  EXPECT_EQ(reference::largest({12, 7}), 510.0f);
  EXPECT_EQ(reference::largest({8, 3}), 480.0f);
  EXPECT_EQ(reference::largest({8, 2}), 114688.0f);
  EXPECT_EQ(reference::largest({6, 2}), 28.0f);
  EXPECT_EQ(reference::largest({4, 1}), 6.0f);
}

TEST(FpQuantizerReference, The_four_bit_format_has_these_sixteen_numbers) {
  const float want[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (std::uint32_t code = 0; code < 8; ++code) {
    EXPECT_EQ(reference::decode(code, {4, 1}), want[code]);
    EXPECT_EQ(reference::decode(code | 8, {4, 1}), -want[code]);
  }
}

TEST(FpQuantizerReference, Every_code_is_another_number_and_comes_back_as_itself) {
  for (const FloatFormat& f : kFormats) {
    std::set<float> seen;
    for (std::uint32_t code = 0; code < 1u << f.bits; ++code) {
      const float x = reference::decode(code, f);
      ASSERT_TRUE(std::isfinite(x));
      ASSERT_EQ(reference::encode(x, f, false, 0), code) << f.bits << " bits";
      ASSERT_EQ(reference::encode(x, f, true, 0xffff), code) << "what is exact is not rounded up";
      seen.insert(x);
    }
    EXPECT_EQ(seen.size(), (1u << f.bits) - 1) << "all but the two zeros differ";
  }
}

TEST(FpQuantizerReference, Codes_are_the_nearest_numbers_and_ties_go_to_even) {
  for (const FloatFormat& f : kFormats) {
    const std::uint32_t top = (1u << (f.bits - 1)) - 1;
    for (std::uint32_t code = 0; code < top; ++code) {
      const float low = reference::decode(code, f), high = reference::decode(code + 1, f);
      const float middle = low + (high - low) / 2;
      ASSERT_EQ(reference::encode(middle, f, false, 0), code % 2 == 0 ? code : code + 1);
      ASSERT_EQ(reference::encode(std::nextafter(middle, 0.0f), f, false, 0), code);
      ASSERT_EQ(reference::encode(std::nextafter(middle, 1e9f), f, false, 0), code + 1);
      ASSERT_EQ(reference::encode(middle, f, true, 0x7fff), code);
      ASSERT_EQ(reference::encode(middle, f, true, 0x8000), code + 1);
    }
    ASSERT_EQ(reference::encode(1e30f, f, false, 0), top);
    ASSERT_EQ(reference::encode(reference::largest(f), f, true, 0xffff), top);
  }
}

template <class T>
std::vector<T> random_values(std::size_t size, std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<T> values(size);
  for (T& value : values) from_float(normal(generator), value);
  return values;
}

template <class T>
class FpQuantizerReferenceOf : public testing::Test {};
using Types = testing::Types<float, f16, bf16>;
TYPED_TEST_SUITE(FpQuantizerReferenceOf, Types);

TYPED_TEST(FpQuantizerReferenceOf, What_comes_back_is_within_half_an_ulp_and_zeros_stay_zero) {
  constexpr std::int64_t kGroups = 3, kSize = 64;
  for (const FloatFormat& f : kFormats) {
    auto x = random_values<TypeParam>(kGroups * kSize, 1);
    from_float(0.0f, x[5]);
    for (std::size_t i = kSize; i < 2 * kSize; ++i) from_float(0.0f, x[i]);
    std::vector<std::uint8_t> rows(static_cast<std::size_t>(kGroups * fp_row_bytes(kSize, f)),
                                   0xA5);
    FpQuantizeCall call;
    call.input = x.data();
    call.groups = kGroups;
    call.group_size = kSize;
    call.format = f;
    call.rows = rows.data();
    ASSERT_TRUE(fp_quantizer::check(call));
    reference::fp_quantize<TypeParam>(call);
    std::vector<TypeParam> y(x.size());
    FpDequantizeCall inverse;
    inverse.rows = rows.data();
    inverse.output = y.data();
    inverse.groups = kGroups;
    inverse.group_size = kSize;
    inverse.format = f;
    ASSERT_TRUE(fp_quantizer::check(inverse));
    reference::fp_dequantize<TypeParam>(inverse);
    EXPECT_EQ(to_float(y[5]), 0.0f);
    EXPECT_EQ(to_float(y[kSize + 9]), 0.0f);
    for (std::int64_t g = 0; g < kGroups; ++g) {
      double most = 0;
      for (std::int64_t i = 0; i < kSize; ++i) {
        most = std::max(
            most,
            std::fabs(static_cast<double>(to_float(x[static_cast<std::size_t>(g * kSize + i)]))));
      }
      for (std::int64_t i = 0; i < kSize; ++i) {
        const auto at = static_cast<std::size_t>(g * kSize + i);
        const double value = to_float(x[at]);
        const double tiny = most / reference::largest(f) *
                            std::ldexp(1.0, -reference::exponent_bias(f) - f.mantissa);
        const double half_ulp = std::fabs(value) * std::ldexp(0.5, -f.mantissa) + tiny;
        EXPECT_NEAR(to_float(y[at]), value, half_ulp * 1.001 + std::fabs(value) / 256);
      }
    }
    // Selected: the last group, then one that is not there, then the first.
    const std::int32_t indexes[] = {2, 3, 0};
    std::vector<TypeParam> selected(3 * kSize);
    inverse.output = selected.data();
    inverse.indexes = indexes;
    inverse.index_count = 3;
    ASSERT_TRUE(fp_quantizer::check(inverse));
    reference::fp_dequantize<TypeParam>(inverse);
    EXPECT_EQ(std::memcmp(&selected[0], &y[2 * kSize], kSize * sizeof(TypeParam)), 0);
    EXPECT_EQ(std::memcmp(&selected[2 * kSize], &y[0], kSize * sizeof(TypeParam)), 0);
    EXPECT_TRUE(std::isnan(to_float(selected[kSize])));
  }
}

TEST(FpQuantizerReference, Rows_are_codes_from_the_lowest_bits_and_then_the_scale) {
  const std::vector<float> x = {6.0f, -0.5f, 1.0f, 0.0f};
  std::vector<std::uint8_t> rows(6);
  FpQuantizeCall call;
  call.input = x.data();
  call.groups = 1;
  call.group_size = 4;
  call.format = {4, 1};
  call.rows = rows.data();
  reference::fp_quantize<float>(call);
  EXPECT_EQ(rows, (std::vector<std::uint8_t>{0x97, 0x02, 0, 0, 0x80, 0x3f}));
}

TEST(FpQuantizerReference, Stochastic_rounding_is_right_on_average) {
  for (const FloatFormat& f : kFormats) {
    // 0.3 of the way between two neighbours.
    const float low = reference::decode(4, f), high = reference::decode(5, f);
    const float y = low + 0.3f * (high - low);
    int up = 0;
    constexpr int kCount = 1 << 14;
    for (int i = 0; i < kCount; ++i) {
      const auto index = static_cast<std::uint64_t>(i);
      const std::uint32_t random = sixteen_bits(philox(3, index / 8, 0), i % 8);
      const std::uint32_t code =
          reference::encode(-y, f, true, random) & ((1u << (f.bits - 1)) - 1);
      ASSERT_TRUE(code == 4 || code == 5);
      up += code == 5;
    }
    EXPECT_NEAR(static_cast<double>(up) / kCount, 0.3, 4 * std::sqrt(0.21 / kCount));
  }
}

template <class Call>
std::string refusal(const Call& call) {
  try {
    fp_quantizer::check(call);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(FpQuantizerChecks, What_does_not_fit_is_refused_in_words) {
  float x[8];
  std::uint8_t rows[64];
  FpQuantizeCall call;
  call.input = x;
  call.rows = rows;
  call.groups = 1;
  call.group_size = 6;
  EXPECT_EQ(refusal(call), "");
  call.format = {6, 2};
  EXPECT_NE(refusal(call).find("does not end on a byte"), std::string::npos);
  call.format = {8, 4};
  EXPECT_NE(refusal(call).find("no format of 8 bits with 4 of mantissa"), std::string::npos);
  call.format = {8, 3};
  call.rows = nullptr;
  EXPECT_NE(refusal(call).find("rows is null"), std::string::npos);
  FpDequantizeCall inverse;
  const std::int32_t index = 0;
  inverse.indexes = &index;
  inverse.index_count = 1;
  inverse.groups = 6;
  inverse.group_size = 8;
  inverse.groups_an_index = 4;
  EXPECT_NE(refusal(inverse).find("do not make slabs of 4"), std::string::npos);
}

}  // namespace
}  // namespace ds

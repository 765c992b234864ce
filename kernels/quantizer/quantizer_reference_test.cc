// The definition itself, the refusals and the layout over threads: none of it needs a device.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "group_plan.h"
#include "plan.h"
#include "reference.h"

namespace ds {
namespace {

template <class T>
std::vector<T> random_values(std::size_t size, std::uint32_t seed, float factor = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<T> values(size);
  for (T& value : values) from_float(factor * normal(generator), value);
  return values;
}

template <class T>
constexpr DType dtype_of() {
  return std::is_same_v<T, float> ? DType::f32 : std::is_same_v<T, f16> ? DType::f16 : DType::bf16;
}

template <class T>
struct Quantized {
  std::vector<std::uint8_t> codes;
  std::vector<float> params;
};

template <class T>
Quantized<T> quantized(const std::vector<T>& x, std::int64_t groups, QuantFormat format,
                       Swizzle swizzle = {}, T* error = nullptr, float beta = 0.0f) {
  Quantized<T> q;
  q.codes.assign(x.size() * static_cast<std::size_t>(format.bits) / 8, 0xA5);
  q.params.assign(static_cast<std::size_t>(groups) * (format.symmetric ? 1 : 2), NAN);
  QuantizeCall call;
  call.input = x.data();
  call.dtype = dtype_of<T>();
  call.groups = groups;
  call.group_size = static_cast<std::int64_t>(x.size()) / groups;
  call.format = format;
  call.codes = q.codes.data();
  call.params = q.params.data();
  call.swizzle = swizzle;
  call.error = error;
  call.error_beta = beta;
  EXPECT_TRUE(quantizer::check(call));
  reference::quantize<T>(call);
  return q;
}

template <class T>
std::vector<T> dequantized(const Quantized<T>& q, std::int64_t groups, std::size_t size,
                           QuantFormat format) {
  std::vector<T> x(size);
  DequantizeCall call;
  call.codes = q.codes.data();
  call.params = q.params.data();
  call.output = x.data();
  call.dtype = dtype_of<T>();
  call.groups = groups;
  call.group_size = static_cast<std::int64_t>(size) / groups;
  call.format = format;
  EXPECT_TRUE(quantizer::check(call));
  reference::dequantize<T>(call);
  return x;
}

TEST(QuantizerReference, Philox_gives_the_published_words) {
  const Philox zero = philox<10>(0, 0, 0);
  EXPECT_EQ(zero.word[0], 0x6627e8d5u);
  EXPECT_EQ(zero.word[1], 0xe169c58du);
  EXPECT_EQ(zero.word[2], 0xbc57ac4cu);
  EXPECT_EQ(zero.word[3], 0x9b00dbd8u);
  const Philox seven = philox<7>(0, 0, 0);
  EXPECT_EQ(seven.word[0], 0x5f6fb709u);
  EXPECT_EQ(seven.word[1], 0x0d893f64u);
  EXPECT_EQ(seven.word[2], 0x4f121f81u);
  EXPECT_EQ(seven.word[3], 0x4f730a48u);
  const Philox ones = philox<10>(~0ull, ~0ull, ~0ull);
  EXPECT_EQ(ones.word[0], 0x408f276du);
}

TEST(QuantizerReference, Codes_and_scales_of_a_group_worked_out_by_hand) {
  const std::vector<float> x = {1.0f, -2.0f, 0.5f, 0.25f};
  const auto q = quantized(x, 1, {8, true});
  EXPECT_EQ(q.codes, (std::vector<std::uint8_t>{64, 0x80, 32, 16}));  // scale 128/2
  EXPECT_EQ(q.params, (std::vector<float>{1.0f / 64}));
  const auto four = quantized(x, 1, {4, true});                    // scale 8/2; 0.25·4 = 1
  EXPECT_EQ(four.codes, (std::vector<std::uint8_t>{0x48, 0x21}));  // the first in the upper half
  // Asymmetric: 0, 1, 2, 4 have offset 2 and scale 256/4 = 64.
  const auto asym = quantized(std::vector<float>{0, 1, 2, 4}, 1, {8, false});
  EXPECT_EQ(asym.codes, (std::vector<std::uint8_t>{0x80, 0xC0, 0, 127}));
  EXPECT_EQ(asym.params, (std::vector<float>{1.0f / 64, 2.0f}));
}

TEST(QuantizerReference, Halves_round_to_even) {
  std::vector<float> x = {128, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 0};
  const auto q = quantized(x, 1, {8, true});
  EXPECT_EQ(q.codes, (std::vector<std::uint8_t>{127, 0, 2, 2, 0, 0xFE, 0xFE, 0}));
}

template <class T>
class QuantizerReferenceOf : public testing::Test {};
using Types = testing::Types<float, f16, bf16>;
TYPED_TEST_SUITE(QuantizerReferenceOf, Types);

TYPED_TEST(QuantizerReferenceOf, What_comes_back_is_within_half_a_step_of_float64) {
  for (const int bits : {8, 4}) {
    for (const bool symmetric : {true, false}) {
      const QuantFormat format{bits, symmetric};
      const std::int64_t groups = 7, size = 66;
      const auto x = random_values<TypeParam>(groups * size, 3, 5.0f);
      const auto q = quantized(x, groups, format);
      const auto y = dequantized(q, groups, x.size(), format);
      for (std::int64_t g = 0; g < groups; ++g) {
        double low = INFINITY, high = -INFINITY;
        for (std::int64_t i = 0; i < size; ++i) {
          const double value = to_float(x[static_cast<std::size_t>(g * size + i)]);
          low = std::min(low, value);
          high = std::max(high, value);
        }
        const double absolute = std::max(-low, high);
        const double step =
            symmetric ? absolute / std::ldexp(1.0, bits - 1) : (high - low) / std::ldexp(1.0, bits);
        const double rounding = absolute * (sizeof(TypeParam) == 4 ? 1e-6 : 0.5 / 128);
        for (std::int64_t i = 0; i < size; ++i) {
          const auto at = static_cast<std::size_t>(g * size + i);
          const double value = to_float(x[at]);
          // The largest code is one less than the largest value needs: a whole step there.
          const bool top = value > (symmetric ? absolute : high) - step;
          EXPECT_NEAR(to_float(y[at]), value, step * (top ? 1.001 : 0.5001) + rounding);
        }
      }
    }
  }
}

TYPED_TEST(QuantizerReferenceOf, Fake_quantization_is_there_and_back) {
  for (const int bits : {8, 4}) {
    for (const bool symmetric : {true, false}) {
      const QuantFormat format{bits, symmetric};
      auto x = random_values<TypeParam>(640, 5);
      const auto want = dequantized(quantized(x, 5, format), 5, x.size(), format);
      FakeQuantizeCall call;
      call.values = x.data();
      call.dtype = dtype_of<TypeParam>();
      call.groups = 5;
      call.group_size = 128;
      call.bits = bits;
      call.symmetric = symmetric;
      reference::fake_quantize<TypeParam>(call);
      EXPECT_EQ(std::memcmp(x.data(), want.data(), x.size() * sizeof(TypeParam)), 0);
    }
  }
}

TYPED_TEST(QuantizerReferenceOf, Bfloat16_is_not_read_as_float16) {
  // 1.0 in bf16 is 0x3f80; read as f16 it would be 1.875.
  std::vector<TypeParam> x(8);
  for (TypeParam& value : x) from_float(1.0f, value);
  from_float(2.0f, x[3]);
  const auto q = quantized(x, 1, {8, true});
  EXPECT_EQ(q.params[0], 2.0f / 128);
  EXPECT_EQ(q.codes[0], 64);
}

TYPED_TEST(QuantizerReferenceOf, Groups_of_zeros_or_of_one_value_come_back) {
  std::vector<TypeParam> x(32);
  for (std::size_t i = 16; i < 32; ++i) from_float(3.25f, x[i]);
  const auto symmetric = dequantized(quantized(x, 2, {8, true}), 2, 32, {8, true});
  EXPECT_EQ(to_float(symmetric[0]), 0.0f);
  const auto asymmetric = dequantized(quantized(x, 2, {8, false}), 2, 32, {8, false});
  EXPECT_EQ(to_float(asymmetric[0]), 0.0f);
  EXPECT_EQ(to_float(asymmetric[20]), 3.25f);
}

TYPED_TEST(QuantizerReferenceOf, What_is_not_finite_does_not_come_back_as_a_number) {
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    for (const bool symmetric : {true, false}) {
      auto x = random_values<TypeParam>(64, 5);
      from_float(bad, x[37]);
      const auto y = dequantized(quantized(x, 2, {8, symmetric}), 2, 64, {8, symmetric});
      EXPECT_FALSE(std::isfinite(to_float(y[37]))) << bad << symmetric;
      EXPECT_TRUE(std::isfinite(to_float(y[5])));  // The other group.
    }
  }
}

TEST(QuantizerReference, Stochastic_rounding_is_right_on_average_and_stays_in_range) {
  std::vector<float> x(1 << 16, 0.3f);
  for (std::size_t i = 0; i < x.size(); i += 64) x[i] = 128.0f * ((i / 64) % 2 ? 1.0f : -1.0f);
  FakeQuantizeCall call;
  call.values = x.data();
  call.groups = 1;
  call.group_size = 1 << 16;
  call.stochastic = true;
  call.random.seed = 7;
  reference::fake_quantize<float>(call);
  double sum = 0;
  int count = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (i % 64 == 0) {
      ASSERT_TRUE(x[i] == 127.0f || x[i] == -128.0f) << x[i];
    } else {
      ASSERT_TRUE(x[i] == 0.0f || x[i] == 1.0f) << x[i];
      sum += x[i];
      ++count;
    }
  }
  EXPECT_NEAR(sum / count, 0.3, 4 * std::sqrt(0.21 / count));
}

TEST(QuantizerReference, Stochastic_asymmetric_rounding_uses_the_asymmetric_range) {
  // A peer runs its symmetric kernel here: values far from zero would lose all detail.
  std::vector<float> x(256);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 1000.0f + static_cast<float>(i);
  FakeQuantizeCall call;
  call.values = x.data();
  call.groups = 1;
  call.group_size = 256;
  call.symmetric = false;
  call.stochastic = true;
  reference::fake_quantize<float>(call);
  for (std::size_t i = 0; i < x.size(); ++i)
    EXPECT_NEAR(x[i], 1000.0 + static_cast<double>(i), 1.0);
}

TEST(QuantizerReference, Swizzling_brings_together_what_one_device_of_each_node_exchanges) {
  // Two nodes of four devices: 0 1 2 3 4 5 6 7 becomes 0 4 1 5 2 6 3 7.
  std::vector<std::int64_t> to(8);
  for (std::int64_t g = 0; g < 8; ++g) {
    to[static_cast<std::size_t>(reference::swizzled_group(g, 8, {1, 2, 4}))] = g;
  }
  EXPECT_EQ(to, (std::vector<std::int64_t>{0, 4, 1, 5, 2, 6, 3, 7}));
  // Two slices: first the first halves of all partitions.
  std::vector<std::int64_t> sliced(8);
  for (std::int64_t g = 0; g < 8; ++g) {
    sliced[static_cast<std::size_t>(reference::swizzled_group(g, 8, {2, 2, 2}))] = g;
  }
  EXPECT_EQ(sliced, (std::vector<std::int64_t>{0, 4, 2, 6, 1, 5, 3, 7}));
}

TEST(QuantizerReference, Swizzled_output_is_the_plain_output_in_another_order) {
  const auto x = random_values<f16>(24 * 16, 9);
  const Swizzle swizzle{3, 2, 2};
  const auto plain = quantized(x, 24, {4, false});
  const auto swizzled = quantized(x, 24, {4, false}, swizzle);
  for (std::int64_t g = 0; g < 24; ++g) {
    const auto to = static_cast<std::size_t>(reference::swizzled_group(g, 24, swizzle));
    const auto from = static_cast<std::size_t>(g);
    EXPECT_EQ(std::memcmp(&plain.codes[from * 8], &swizzled.codes[to * 8], 8), 0);
    EXPECT_EQ(plain.params[2 * from], swizzled.params[2 * to]);
    EXPECT_EQ(plain.params[2 * from + 1], swizzled.params[2 * to + 1]);
  }
}

TEST(QuantizerReference, Error_feedback_makes_the_mean_of_many_rounds_right) {
  const auto x = random_values<float>(64, 11);
  std::vector<float> error(64, 0.0f);
  std::vector<double> sum(64, 0.0);
  constexpr int kRounds = 400;
  for (int round = 0; round < kRounds; ++round) {
    const auto q = quantized<float>(x, 1, {4, true}, {}, error.data(), 0.0f);
    const auto y = dequantized(q, 1, 64, {4, true});
    for (std::size_t i = 0; i < 64; ++i) sum[i] += y[i];
  }
  for (std::size_t i = 0; i < 64; ++i) EXPECT_NEAR(sum[i] / kRounds, x[i], 0.01) << i;
}

TEST(QuantizerReference, A_reduction_is_the_quantized_sum) {
  for (const int bits : {8, 4}) {
    for (const bool symmetric : {true, false}) {
      const QuantFormat format{bits, symmetric};
      constexpr std::int64_t kTensors = 3, kSize = 96;
      const auto x = random_values<float>(kTensors * kSize, 13);
      const auto q = quantized(x, kTensors * 4, format);
      const auto y = dequantized(q, kTensors * 4, x.size(), format);
      Quantized<float> got;
      got.codes.assign(kSize * static_cast<std::size_t>(bits) / 8, 0xA5);
      got.params.assign(symmetric ? 2 : 4, NAN);
      ReduceCall call;
      call.codes = q.codes.data();
      call.params = q.params.data();
      call.tensors = kTensors;
      call.size = kSize;
      call.in_groups = 4;
      call.out_groups = 2;
      call.format = format;
      call.out_codes = got.codes.data();
      call.out_params = got.params.data();
      EXPECT_TRUE(quantizer::check(call));
      reference::quantized_reduce<f16>(call);
      const auto back = dequantized(got, 2, kSize, format);
      for (std::size_t i = 0; i < kSize; ++i) {
        const double sum = static_cast<double>(y[i]) + y[kSize + i] + y[2 * kSize + i];
        const float step = got.params[(i < kSize / 2 ? 0u : 1u) * (symmetric ? 1u : 2u)];
        // The largest code is one less than the largest value needs.
        const double top = std::fabs(sum) > std::ldexp(0.8 * step, bits - 1) ? 1.001 : 0.501;
        EXPECT_NEAR(back[i], sum, step * (symmetric ? top : 1.001));
      }
    }
  }
}

TEST(QuantizerReference, Unsigned_codes_to_half_divide_and_add) {
  const std::vector<std::uint8_t> codes = {0x12, 0xF0};
  f16 scale, minimum;
  from_float(2.0f, scale);
  from_float(-1.0f, minimum);
  std::vector<std::uint16_t> out(4);
  IntToHalfCall call{codes.data(), &scale.bits, &minimum.bits, out.data(), 1, 4, 4};
  reference::int_to_half(call);
  const float want4[] = {-0.5f, 0.0f, 6.5f, -1.0f};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(to_float(f16{out[i]}), want4[i]);
  call.bits = 8;
  call.group_size = 2;
  reference::int_to_half(call);
  EXPECT_EQ(to_float(f16{out[0]}), 8.0f);
  EXPECT_EQ(to_float(f16{out[1]}), 119.0f);
}

template <class Call>
std::string refusal(const Call& call) {
  try {
    quantizer::check(call);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(QuantizerChecks, What_does_not_fit_is_refused_in_words) {
  float x[4];
  std::uint8_t codes[4];
  QuantizeCall q;
  q.input = x;
  q.codes = codes;
  q.params = x;
  q.groups = 1;
  q.group_size = 3;
  EXPECT_EQ(refusal(q), "");
  q.format.bits = 4;
  EXPECT_NE(refusal(q).find("even size"), std::string::npos);
  q.format.bits = 5;
  EXPECT_NE(refusal(q).find("bits must be 8 or 4"), std::string::npos);
  q.format.bits = 8;
  q.swizzle = {1, 2, 4};
  EXPECT_NE(refusal(q).find("equal partitions"), std::string::npos);
  q.swizzle = {};
  q.input = nullptr;
  EXPECT_NE(refusal(q).find("input is null"), std::string::npos);
  q.groups = 0;
  EXPECT_EQ(refusal(q), "") << "an empty tensor needs no memory";
  FakeQuantizeCall fake;
  fake.bits = 17;
  EXPECT_NE(refusal(fake).find("from 2 to 16"), std::string::npos);
  ReduceCall reduce;
  reduce.size = 10;
  reduce.in_groups = 2;
  reduce.out_groups = 3;
  EXPECT_NE(refusal(reduce).find("10 elements do not make 3 out_groups"), std::string::npos);
}

TEST(QuantizerPlan, Every_group_size_has_teams_that_hold_it) {
  for (std::int64_t vectors = 1; vectors <= 20000; ++vectors) {
    for (const int at_once : {4, 0}) {
      const auto teams = groups::lay_out_teams(1000, vectors * 8, 8, true, 8, at_once);
      ASSERT_TRUE(teams.fits);
      ASSERT_EQ(teams.chunks > 1, vectors > 8192) << vectors;
      ASSERT_EQ(teams.one_vector, at_once > 0 && vectors <= 32);
      const std::int64_t team = std::int64_t{1} << teams.team_log2;
      ASSERT_GE(team * (teams.one_vector ? 1 : 8) * teams.chunks, vectors);
      ASSERT_GE(teams.block, team);
      ASSERT_LE(teams.block, 1024);
      ASSERT_TRUE(team <= 32 || team == teams.block) << "a barrier is for one team";
      const std::int64_t a_block = teams.block / team * (teams.one_vector ? at_once : 1);
      ASSERT_GE(teams.blocks * a_block, 1000 * teams.chunks);
      ASSERT_LT((teams.blocks - 1) * a_block, 1000 * teams.chunks);
    }
  }
  EXPECT_FALSE(groups::lay_out_teams(1, 12, 8, true, 8, 4).fits);
  EXPECT_FALSE(groups::lay_out_teams(1, 16, 8, false, 8, 4).fits);
}

TEST(QuantizerPlan, Division_by_multiplication_is_division) {
  std::mt19937 generator(1);
  for (std::uint32_t by : {1u, 2u, 3u, 5u, 7u, 64u, 255u, 257u, 1000003u, 0x7fffffffu}) {
    const groups::FastDivision divide(by);
    for (int i = 0; i < 1000; ++i) {
      const std::uint32_t n = generator() >> (1 + i % 24);
      ASSERT_EQ(divide(n), n / by) << n << " / " << by;
    }
    ASSERT_EQ(divide(0x7fffffffu), 0x7fffffffu / by);
  }
}

}  // namespace
}  // namespace ds

#include "simd.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "self_test.h"

namespace ds {

struct Words {
  void (*convert[3][3])(const void* in, void* out, std::int64_t size);
  void (*pairs[3])(const float* in, void* out, std::int64_t size);
  void (*steps)(const float* in, float* out, float step, std::int64_t size);
  void (*roots)(const float* in, float* out, std::int64_t size);
  void (*extremes)(const float* a, const float* b, float* most, float* least, std::int64_t size);
  void (*exponentials)(const float* in, float* out, std::int64_t size);
};

}  // namespace ds

#define DS_KERNEL_FILE "simd_probe.h"
#include "for_each_isa.h"

namespace ds {
namespace {

const Words& words_of(CpuIsa isa) {
  return DS_ON_PATH(isa, words());
}

constexpr std::int64_t kMultiple = 32;  // Of two vectors of every path.

// Floats around every rounding decision of both formats: each upper half with the lower halves
// that are exact, just above, just below, at and around the middle; denormals, infinities and NaN
// among them. And the middles of f16, which lie elsewhere.
std::vector<float> interesting_floats() {
  std::vector<float> all;
  for (std::uint32_t top = 0; top < 0x10000u; ++top) {
    for (std::uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      all.push_back(float_from_bits(top << 16 | low));
    }
  }
  for (std::uint32_t bits = 0; bits < 0x7c00u; ++bits) {
    const float low = to_float(f16{static_cast<std::uint16_t>(bits)});
    const float high = to_float(f16{static_cast<std::uint16_t>(bits + 1)});
    const float middle = std::isinf(high) ? 65520.0f : low + (high - low) / 2;
    for (float x : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, INFINITY)}) {
      all.push_back(x);
      all.push_back(-x);
    }
  }
  while (all.size() % kMultiple != 0) all.push_back(0.0f);
  return all;
}

std::vector<std::uint16_t> all_halves() {
  std::vector<std::uint16_t> all;
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    all.push_back(static_cast<std::uint16_t>(bits));
  }
  return all;
}

class Simd : public testing::TestWithParam<CpuIsa> {
 protected:
  void SetUp() override {
    if (!runs(best_isa(), GetParam()))
      GTEST_SKIP() << "this machine has no " << isa_name(GetParam());
  }
};

TEST_P(Simd, Floats_narrow_to_the_bits_of_the_scalar_code) {
  const std::vector<float> in = interesting_floats();
  const auto size = static_cast<std::int64_t>(in.size());
  for (int to : {1, 2}) {
    std::vector<std::uint16_t> want(in.size()), got(in.size()), paired(in.size());
    words_of(CpuIsa::scalar).convert[0][to](in.data(), want.data(), size);
    words_of(GetParam()).convert[0][to](in.data(), got.data(), size);
    words_of(GetParam()).pairs[to](in.data(), paired.data(), size);
    for (std::size_t i = 0; i < in.size(); ++i) {
      ASSERT_EQ(paired[i], want[i]) << "in a pair, " << in[i] << ", type " << to;
      ASSERT_EQ(got[i], want[i]) << (to == 1 ? "f16 of " : "bf16 of ") << in[i] << " (0x"
                                 << std::hex << float_bits(in[i]) << ")";
    }
  }
}

// One denormal sends a vector of the bf16 instruction down another road; alone among normal numbers
// and in every lane it must come out the same.
TEST_P(Simd, The_larger_and_the_smaller_of_two_are_those_of_the_scalar_code) {
  const std::vector<float> a = interesting_floats();
  std::vector<float> b(a.rbegin(), a.rend()), most(a.size()), least(a.size());
  words_of(GetParam())
      .extremes(a.data(), b.data(), most.data(), least.data(), static_cast<std::int64_t>(a.size()));
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(float_bits(most[i]), float_bits(a[i] > b[i] ? a[i] : b[i])) << a[i] << " " << b[i];
    ASSERT_EQ(float_bits(least[i]), float_bits(a[i] < b[i] ? a[i] : b[i])) << a[i] << " " << b[i];
  }
}

TEST_P(Simd, Exponentials_are_right_to_two_ulp_and_the_same_on_every_path) {
  std::vector<float> in = interesting_floats();
  for (int i = -90 * 512; i < 90 * 512; ++i) in.push_back(static_cast<float>(i) / 511.0f);
  const auto size = static_cast<std::int64_t>(in.size());
  ASSERT_EQ(size % kMultiple, 0);
  std::vector<float> got(in.size()), want(in.size());
  words_of(GetParam()).exponentials(in.data(), got.data(), size);
  words_of(CpuIsa::scalar).exponentials(in.data(), want.data(), size);
  for (std::size_t i = 0; i < in.size(); ++i) {
    ASSERT_EQ(float_bits(got[i]), float_bits(want[i])) << in[i];
    if (std::isnan(in[i])) {
      ASSERT_TRUE(std::isnan(got[i])) << float_bits(in[i]);
    } else if (in[i] < -86.5f) {
      ASSERT_EQ(got[i], 0.0f) << in[i];
    } else {
      const double exact = std::exp(static_cast<double>(std::fmin(in[i], 88.0f)));
      ASSERT_LE(std::fabs(got[i] - exact), 2 * ulp_at(DType::f32, exact)) << in[i];
    }
  }
}

TEST_P(Simd, A_denormal_in_any_lane_narrows_to_the_bits_of_the_scalar_code) {
  for (std::size_t lane = 0; lane < kMultiple; ++lane) {
    std::vector<float> in(kMultiple, 1.00390625f);
    in[lane] = float_from_bits(0x00418000u);
    std::vector<std::uint16_t> want(kMultiple), got(kMultiple), paired(kMultiple);
    words_of(CpuIsa::scalar).convert[0][2](in.data(), want.data(), kMultiple);
    words_of(GetParam()).convert[0][2](in.data(), got.data(), kMultiple);
    words_of(GetParam()).pairs[2](in.data(), paired.data(), kMultiple);
    ASSERT_EQ(got, want) << lane;
    ASSERT_EQ(paired, want) << lane;
  }
}

TEST_P(Simd, Halves_widen_to_the_bits_of_the_scalar_code) {
  const std::vector<std::uint16_t> in = all_halves();
  const auto size = static_cast<std::int64_t>(in.size());
  for (int from : {1, 2}) {
    std::vector<float> want(in.size()), got(in.size());
    words_of(CpuIsa::scalar).convert[from][0](in.data(), want.data(), size);
    words_of(GetParam()).convert[from][0](in.data(), got.data(), size);
    for (std::size_t i = 0; i < in.size(); ++i) {
      ASSERT_EQ(float_bits(got[i]), float_bits(want[i])) << from << " " << i;
    }
  }
}

TEST_P(Simd, Tails_of_every_length_touch_their_elements_and_no_other) {
  for (int type : {0, 1, 2}) {
    const std::size_t bytes = type == 0 ? 4 : 2;
    for (std::int64_t size = 0; size <= 2 * kMultiple + 1; ++size) {
      const std::size_t used = static_cast<std::size_t>(size) * bytes;
      // No byte behind the end belongs to the input, so that a sanitizer sees a read there.
      std::vector<std::uint8_t> in(used), out(used + 64, 0xEE);
      for (std::size_t i = 0; i < used; ++i) in[i] = static_cast<std::uint8_t>(i % 61 + 1);
      words_of(GetParam()).convert[type][type](in.data(), out.data(), size);
      for (std::size_t i = 0; i < used; ++i) ASSERT_EQ(out[i], in[i]) << type << " " << size;
      for (std::size_t i = used; i < out.size(); ++i)
        ASSERT_EQ(out[i], 0xEE) << type << " " << size;
    }
  }
}

TEST_P(Simd, Signed_step_is_zero_at_zero_and_NaN_at_NaN) {
  std::vector<float> in = {0.0f, -0.0f, 1.0f, -1.0f, 1e-45f, -1e-45f, INFINITY, -INFINITY,
                           NAN,  -NAN,  2.0f, -3.0f, 1e38f,  -1e38f,  0.5f,     -0.5f};
  std::vector<float> out(in.size());
  for (const float step : {0.25f, -0.25f}) {
    words_of(GetParam()).steps(in.data(), out.data(), step, 16);
    for (std::size_t i = 0; i < in.size(); ++i) {
      if (std::isnan(in[i])) {
        EXPECT_TRUE(std::isnan(out[i]));
      } else {
        EXPECT_EQ(out[i], in[i] > 0 ? step : in[i] < 0 ? -step : 0.0f) << in[i];
      }
    }
  }
}

TEST_P(Simd, Roots_are_those_of_the_scalar_code_and_of_what_is_not_negative) {
  std::vector<float> in(1024), want(1024), got(1024);
  Random random(3);
  for (float& x : in) x = static_cast<float>(random.next());
  in[0] = NAN;
  in[1] = -0.0f;
  in[2] = INFINITY;
  words_of(CpuIsa::scalar).roots(in.data(), want.data(), 1024);
  words_of(GetParam()).roots(in.data(), got.data(), 1024);
  EXPECT_TRUE(std::isnan(got[0]));
  for (std::size_t i = 1; i < in.size(); ++i) {
    ASSERT_EQ(float_bits(got[i]), float_bits(want[i])) << in[i];
    ASSERT_EQ(got[i], in[i] < 0 ? 0.0f : std::sqrt(in[i]));
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, Simd, testing::ValuesIn(kAllIsas),
                         [](const auto& path) { return isa_name(path.param); });

}  // namespace
}  // namespace ds

// The quantizer on the CPU, against its definition, to the last bit.

#include "quantizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "on_host.h"
#include "reference.h"
#include "self_test.h"

namespace ds {
namespace {

// Groups of numbers of every kind, one kind a group in turns.
template <class T>
std::vector<T> groups_of_all_kinds(std::int64_t groups, std::int64_t size, std::uint32_t seed) {
  std::vector<T> x = random_values<T>(groups * size, seed, 3.0f);
  for (std::int64_t g = 0; g < groups; ++g) {
    T* group = x.data() + g * size;
    const auto put = [&](std::int64_t i, float to) { from_float(to, group[i % size]); };
    for (std::int64_t i = 0; i < size; ++i) {
      const float v = to_float(group[i]);
      if (g % 11 == 1) put(i, 0.0f);
      if (g % 11 == 2) put(i, -1.25f);     // All alike.
      if (g % 11 == 3) put(i, v * 1e-6f);  // Denormals of f16.
      if (g % 11 == 4) put(i, i % 2 == 0 ? 0.0f : -0.0f);
      if (g % 11 == 5) put(i, std::round(v * 2) / 2);  // Ties.
      if (g % 11 == 6) put(i, v + 100.0f);
      if (g % 11 == 7) put(i, v * 1e-39f);
    }
    if (g % 11 == 8) put(size / 2, NAN);
    if (g % 11 == 9) put(size - 1, -INFINITY);
    if (g % 11 == 10) put(0, -NAN);
  }
  return x;
}

std::string about(CpuIsa isa, DType dtype, std::int64_t groups, std::int64_t size, int bits,
                  bool symmetric) {
  return std::string(isa_name(isa)) + ", " + dtype_name(dtype) + ", " + std::to_string(groups) +
         " groups of " + std::to_string(size) + ", " + std::to_string(bits) + " bits, " +
         (symmetric ? "symmetric" : "asymmetric");
}

// There and back, with and without error feedback.
template <class T>
void expect_codes(CpuIsa isa, int threads, std::int64_t groups, std::int64_t size, int bits,
                  bool symmetric, const Swizzle& swizzle, std::size_t shift) {
  const std::string what = about(isa, dtype_of<T>(), groups, size, bits, symmetric);
  const std::vector<T> x = groups_of_all_kinds<T>(groups, size, 7);
  for (const bool with_error : {false, true}) {
    std::vector<T> error = random_values<T>(with_error ? groups * size : 0, 8, 0.01f);
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(groups * size * bits / 8), 0xA5);
    std::vector<float> params(static_cast<std::size_t>(groups * (symmetric ? 1 : 2)), -7.0f);
    Guarded<T> there_x(x, shift), there_error(error, shift);
    Guarded<std::uint8_t> there_codes(codes, shift);
    Guarded<float> there_params(params);
    QuantizeCall call;
    call.input = there_x.data();
    call.dtype = dtype_of<T>();
    call.groups = groups;
    call.group_size = size;
    call.format = {bits, symmetric};
    call.codes = there_codes.data();
    call.params = there_params.data();
    call.swizzle = swizzle;
    call.error = with_error ? there_error.data() : nullptr;
    call.error_beta = 0.3f;
    quantize(call, CpuOptions{threads, isa});
    call.input = x.data();
    call.codes = codes.data();
    call.params = params.data();
    call.error = with_error ? error.data() : nullptr;
    reference::quantize<T>(call);
    there_codes.expect(codes, what + ": codes");
    there_params.expect(params, what + ": params");
    there_error.expect(error, what + ": error");
    if (testing::Test::HasFailure()) return;

    std::vector<T> back(x.size());
    Guarded<T> there_back(back, shift);
    DequantizeCall inverse{codes.data(), params.data(), there_back.data(), dtype_of<T>(),
                           groups,       size,          {bits, symmetric}};
    dequantize(inverse, CpuOptions{threads, isa});
    inverse.output = back.data();
    reference::dequantize<T>(inverse);
    there_back.expect(back, what + ": back");
  }
}

template <class T>
void expect_fake(CpuIsa isa, int threads, std::int64_t groups, std::int64_t size, int bits,
                 bool symmetric, std::size_t shift) {
  for (const bool stochastic : {false, true}) {
    std::vector<T> x = groups_of_all_kinds<T>(groups, size, 9);
    Guarded<T> there(x, shift);
    FakeQuantizeCall call;
    call.values = there.data();
    call.dtype = dtype_of<T>();
    call.groups = groups;
    call.group_size = size;
    call.bits = bits;
    call.symmetric = symmetric;
    call.stochastic = stochastic;
    const std::uint64_t state[2] = {0x123456789abcdefull, (1ull << 40) + 3};
    call.random = {5, 6, stochastic && size % 2 == 0 ? state : nullptr};
    fake_quantize(call, CpuOptions{threads, isa});
    if (call.random.device != nullptr) call.random = {state[0], state[1], nullptr};
    call.values = x.data();
    reference::fake_quantize<T>(call);
    there.expect(x, about(isa, dtype_of<T>(), groups, size, bits, symmetric) +
                        (stochastic ? ", stochastic" : ""));
  }
}

template <class T>
class QuantizerOf : public testing::Test {};
using Types = testing::Types<float, f16, bf16>;
TYPED_TEST_SUITE(QuantizerOf, Types);

TYPED_TEST(QuantizerOf, Codes_parameters_and_errors_are_those_of_the_definition) {
  for (const CpuIsa isa : runnable_isas()) {
    for (const bool symmetric : {true, false}) {
      for (const std::int64_t size : {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 330, 512}) {
        for (const int bits : {8, 4}) {
          if (bits == 4 && size % 2 != 0) continue;
          expect_codes<TypeParam>(isa, 1, 22, size, bits, symmetric, {}, size % 3 == 0 ? 1 : 0);
          ASSERT_FALSE(testing::Test::HasFailure());
        }
      }
    }
  }
}

TYPED_TEST(QuantizerOf, Fake_quantization_is_that_of_the_definition) {
  for (const CpuIsa isa : runnable_isas()) {
    for (const bool symmetric : {true, false}) {
      for (const std::int64_t size : {1, 7, 8, 9, 63, 64, 65, 255, 256, 257, 331, 1000}) {
        for (const int bits : {2, 4, 8, 16}) {
          expect_fake<TypeParam>(isa, 1, 11, size, bits, symmetric, size % 3 == 0 ? 1 : 0);
          ASSERT_FALSE(testing::Test::HasFailure());
        }
      }
    }
  }
}

TYPED_TEST(QuantizerOf, Swizzled_groups_lie_where_they_belong_whatever_thread_they_are_of) {
  for (const int threads : {1, 2, 3, 8}) {
    expect_codes<TypeParam>(CpuIsa::automatic, threads, 48, 2048, 4, true, {2, 2, 4}, 0);
    expect_codes<TypeParam>(CpuIsa::automatic, threads, 48, 1030, 8, false, {3, 4, 2}, 0);
  }
}

TYPED_TEST(QuantizerOf, Groups_that_several_threads_share_are_no_different) {
  for (const int threads : {1, 2, 3, 8}) {
    for (const std::int64_t size : {4098, 8192, 50'002, 100'000}) {
      expect_codes<TypeParam>(CpuIsa::automatic, threads, 1, size, 8, true, {}, 0);
      expect_codes<TypeParam>(CpuIsa::automatic, threads, 2, size, 4, false, {}, 0);
      expect_fake<TypeParam>(CpuIsa::automatic, threads, 1, size, 8, false, 0);
      ASSERT_FALSE(testing::Test::HasFailure()) << threads;
    }
  }
}

TYPED_TEST(QuantizerOf, Reductions_are_those_of_the_definition) {
  using T = TypeParam;
  struct Sizes {
    std::int64_t tensors, size, in_groups, out_groups;
  };
  for (const CpuIsa isa : runnable_isas()) {
    for (const int threads : {1, 3}) {
      for (const Sizes& s : {Sizes{1, 64, 1, 1}, Sizes{3, 660, 6, 10}, Sizes{8, 4096, 8, 2},
                             Sizes{2, 20'000, 10, 1}, Sizes{2, 300'000, 3, 2}}) {
        if (s.size > 20'000 && isa != best_isa()) continue;
        for (const int bits : {8, 4}) {
          for (const bool symmetric : {true, false}) {
            for (const bool with_error : {false, true}) {
              const std::vector<std::uint8_t> in = random_bytes(s.tensors * s.size * bits / 8, 3);
              const std::vector<float> in_params =
                  random_values<float>(s.tensors * s.in_groups * (symmetric ? 1 : 2), 4, 0.1f);
              std::vector<std::uint8_t> codes(static_cast<std::size_t>(s.size * bits / 8), 0xA5);
              std::vector<float> params(
                  static_cast<std::size_t>(s.out_groups * (symmetric ? 1 : 2)), -7.0f);
              std::vector<T> error = random_values<T>(with_error ? s.size : 0, 5);
              Guarded<std::uint8_t> there_codes(codes);
              Guarded<float> there_params(params);
              Guarded<T> there_error(error);
              ReduceCall call;
              call.codes = in.data();
              call.params = in_params.data();
              call.tensors = s.tensors;
              call.size = s.size;
              call.in_groups = s.in_groups;
              call.out_groups = s.out_groups;
              call.format = {bits, symmetric};
              call.out_codes = there_codes.data();
              call.out_params = there_params.data();
              call.error = with_error ? there_error.data() : nullptr;
              call.error_dtype = dtype_of<T>();
              call.error_beta = 0.7f;
              quantized_reduce(call, CpuOptions{threads, isa});
              call.out_codes = codes.data();
              call.out_params = params.data();
              call.error = with_error ? error.data() : nullptr;
              reference::quantized_reduce<T>(call);
              const std::string what =
                  about(isa, dtype_of<T>(), s.out_groups, s.size, bits, symmetric);
              there_codes.expect(codes, what + ": codes");
              there_params.expect(params, what + ": params");
              there_error.expect(error, what + ": error");
              ASSERT_FALSE(testing::Test::HasFailure());
            }
          }
        }
      }
    }
  }
}

TEST(Quantizer, Integers_become_halves_as_defined) {
  for (const CpuIsa isa : runnable_isas()) {
    for (const int threads : {1, 3}) {
      for (const std::int64_t size : {2, 32, 66, 5000}) {
        for (const int bits : {8, 4}) {
          constexpr std::int64_t kGroups = 9;
          const std::vector<std::uint8_t> codes = random_bytes(kGroups * size * bits / 8, 1);
          std::vector<std::uint16_t> scales, minimums;
          for (const f16 x : random_values<f16>(kGroups, 2)) scales.push_back(x.bits);
          for (const f16 x : random_values<f16>(kGroups, 3)) minimums.push_back(x.bits);
          scales[3] = 0;
          minimums[4] = 0x7c00;
          std::vector<std::uint16_t> want(static_cast<std::size_t>(kGroups * size));
          Guarded<std::uint16_t> got(want);
          IntToHalfCall call{codes.data(), scales.data(), minimums.data(), got.data(), kGroups,
                             size,         bits};
          int_to_half(call, CpuOptions{threads, isa});
          call.output = want.data();
          reference::int_to_half(call);
          for (std::size_t i = 0; i < want.size(); ++i) {
            const float a = to_float(f16{got.data()[i]}), b = to_float(f16{want[i]});
            ASSERT_TRUE(got.data()[i] == want[i] || (std::isnan(a) && std::isnan(b)))
                << isa_name(isa) << ", " << i << ": " << a << " and " << b;
          }
        }
      }
    }
  }
}

TEST(Quantizer, What_does_not_fit_is_refused_and_nothing_to_do_is_no_error) {
  float x[4] = {}, params[4] = {};
  std::uint8_t codes[4] = {};
  QuantizeCall call;
  call.input = x;
  call.groups = 1;
  call.group_size = 3;
  call.format.bits = 4;
  call.codes = codes;
  call.params = params;
  EXPECT_THROW(quantize(call, CpuOptions{}), std::invalid_argument);
  call.format.bits = 8;
  call.params = nullptr;
  EXPECT_THROW(quantize(call, CpuOptions{}), std::invalid_argument);
  call.groups = 0;
  quantize(call, CpuOptions{});
  FakeQuantizeCall fake;
  fake.bits = 17;
  EXPECT_THROW(fake_quantize(fake, CpuOptions{}), std::invalid_argument);
  fake.bits = 8;
  fake_quantize(fake, CpuOptions{});
}

TEST(Quantizer, Self_test_is_right_and_without_a_name_it_is_the_processors) {
  char detail[200];
  EXPECT_EQ(ds_self_test_quantizer(nullptr, detail, sizeof detail), DS_SELF_TEST_OK) << detail;
  EXPECT_NE(std::string(detail).find("int8 and int4"), std::string::npos) << detail;
}

}  // namespace
}  // namespace ds

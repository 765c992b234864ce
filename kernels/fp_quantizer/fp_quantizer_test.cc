// The fp_quantizer on the CPU, against its definition, to the last bit.

#include "fp_quantizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "on_host.h"
#include "reference.h"
#include "self_test.h"

namespace ds {
namespace {

constexpr FloatFormat kFormats[] = {{12, 7}, {8, 3}, {8, 2}, {6, 2}, {4, 1}};

// Groups of numbers of every kind, one kind a group in turns.
template <class T>
std::vector<T> groups_of_all_kinds(std::int64_t groups, std::int64_t size, const FloatFormat& f) {
  std::vector<T> x = random_values<T>(groups * size, 11, 3.0f);
  for (std::int64_t g = 0; g < groups; ++g) {
    T* group = x.data() + g * size;
    const auto put = [&](std::int64_t i, float to) { from_float(to, group[i % size]); };
    for (std::int64_t i = 0; i < size; ++i) {
      const float v = to_float(group[i]);
      if (g % 9 == 1) put(i, i % 2 == 0 ? 0.0f : -0.0f);
      if (g % 9 == 2) put(i, v * 1e-6f);
      if (g % 9 == 3) put(i, v * 1e-39f);
      // Codes and the middles between them, with a factor of 1.
      if (g % 9 == 4) {
        const auto code = static_cast<std::uint32_t>(i * 7) & ((1u << (f.bits - 1)) - 1);
        const float here = reference::decode(code, f);
        const float next = reference::decode(code + 1, f);
        put(i, (i % 3 == 0 ? here : (here + next) / 2) * (i % 2 == 0 ? 1.0f : -1.0f));
      }
      if (g % 9 == 5) put(i, v * std::ldexp(1.0f, -static_cast<int>(i % 40)));
    }
    if (g % 9 == 4) put(0, reference::largest(f));
    if (g % 9 == 6) put(size / 2, NAN);
    if (g % 9 == 7) put(size - 1, -INFINITY);
  }
  return x;
}

std::string about(CpuIsa isa, DType dtype, std::int64_t groups, std::int64_t size,
                  const FloatFormat& f) {
  return std::string(isa_name(isa)) + ", " + dtype_name(dtype) + ", " + std::to_string(groups) +
         " groups of " + std::to_string(size) + ", " + std::to_string(f.bits) + " bits with " +
         std::to_string(f.mantissa) + " of mantissa";
}

template <class T>
void expect_there_and_back(CpuIsa isa, int threads, std::int64_t groups, std::int64_t size,
                           const FloatFormat& format, std::size_t shift) {
  const std::vector<T> x = groups_of_all_kinds<T>(groups, size, format);
  std::vector<std::uint8_t> rows(static_cast<std::size_t>(groups * fp_row_bytes(size, format)),
                                 0xA5);
  for (const bool stochastic : {false, true}) {
    const std::string what =
        about(isa, dtype_of<T>(), groups, size, format) + (stochastic ? ", stochastic" : "");
    Guarded<T> there_x(x, shift);
    Guarded<std::uint8_t> there_rows(rows, shift);
    FpQuantizeCall call;
    call.input = there_x.data();
    call.dtype = dtype_of<T>();
    call.groups = groups;
    call.group_size = size;
    call.format = format;
    call.stochastic = stochastic;
    const std::uint64_t state[2] = {77, (1ull << 33) + 5};
    call.random = {3, 4, stochastic && size % 16 == 0 ? state : nullptr};
    call.rows = there_rows.data();
    fp_quantize(call, CpuOptions{threads, isa});
    if (call.random.device != nullptr) call.random = {state[0], state[1], nullptr};
    call.input = x.data();
    call.rows = rows.data();
    reference::fp_quantize<T>(call);
    there_rows.expect(rows, what + ": rows");
    if (testing::Test::HasFailure()) return;
  }
  std::vector<T> back(x.size());
  Guarded<T> there_back(back, shift);
  FpDequantizeCall inverse;
  inverse.rows = rows.data();
  inverse.output = there_back.data();
  inverse.dtype = dtype_of<T>();
  inverse.groups = groups;
  inverse.group_size = size;
  inverse.format = format;
  fp_dequantize(inverse, CpuOptions{threads, isa});
  inverse.output = back.data();
  reference::fp_dequantize<T>(inverse);
  there_back.expect(back, about(isa, dtype_of<T>(), groups, size, format) + ": back");
}

template <class T>
class FpQuantizerOf : public testing::Test {};
using Types = testing::Types<float, f16, bf16>;
TYPED_TEST_SUITE(FpQuantizerOf, Types);

TYPED_TEST(FpQuantizerOf, Rows_and_what_comes_back_are_those_of_the_definition) {
  for (const CpuIsa isa : runnable_isas()) {
    for (const FloatFormat& format : kFormats) {
      for (const std::int64_t size : {4, 8, 12, 16, 36, 60, 64, 68, 132, 256, 332, 512}) {
        expect_there_and_back<TypeParam>(isa, 1, 18, size, format, size % 3 == 0 ? 1 : 0);
        ASSERT_FALSE(testing::Test::HasFailure());
      }
    }
    for (const std::int64_t size : {1, 3, 63, 65}) {
      expect_there_and_back<TypeParam>(isa, 1, 18, size, {8, 3}, 0);
    }
    for (const std::int64_t size : {2, 62, 66}) {
      expect_there_and_back<TypeParam>(isa, 1, 18, size, {12, 7}, 0);
      expect_there_and_back<TypeParam>(isa, 1, 18, size, {4, 1}, 0);
    }
  }
}

TYPED_TEST(FpQuantizerOf, Any_number_of_threads_gives_the_same_also_within_a_group) {
  for (const int threads : {2, 3, 8}) {
    for (const FloatFormat& format : kFormats) {
      expect_there_and_back<TypeParam>(CpuIsa::automatic, threads, 40, 512, format, 0);
      expect_there_and_back<TypeParam>(CpuIsa::automatic, threads, 1, 40'004, format, 0);
      ASSERT_FALSE(testing::Test::HasFailure()) << threads;
    }
  }
}

// Every code of every format, by itself: what one decodes to encodes to it.
TEST(FpQuantizer, Every_code_is_its_own) {
  for (const FloatFormat& format : kFormats) {
    const std::uint32_t codes = 1u << format.bits;
    std::vector<float> x(codes);
    for (std::uint32_t c = 0; c < codes; ++c) x[c] = reference::decode(c, format);
    for (const CpuIsa isa : runnable_isas()) {
      std::vector<std::uint8_t> rows(
          static_cast<std::size_t>(fp_row_bytes(static_cast<std::int64_t>(codes), format)));
      FpQuantizeCall call;
      call.input = x.data();
      call.dtype = DType::f32;
      call.groups = 1;
      call.group_size = static_cast<std::int64_t>(codes);
      call.format = format;
      call.rows = rows.data();
      fp_quantize(call, CpuOptions{1, isa});
      for (std::uint32_t c = 0; c < codes; ++c) {
        ASSERT_EQ(reference::get_bits(rows.data(), c, format.bits), c)
            << isa_name(isa) << ", " << format.bits << " bits";
      }
    }
  }
}

TEST(FpQuantizer, Selected_slabs_come_back_and_what_is_none_is_no_number) {
  for (const FloatFormat& format : kFormats) {
    constexpr std::int64_t kSlabs = 5, kSlab = 3, kSize = 132;
    const std::vector<bf16> x = random_values<bf16>(kSlabs * kSlab * kSize, 1);
    std::vector<std::uint8_t> rows(
        static_cast<std::size_t>(kSlabs * kSlab * fp_row_bytes(kSize, format)));
    FpQuantizeCall call;
    call.input = x.data();
    call.groups = kSlabs * kSlab;
    call.group_size = kSize;
    call.format = format;
    call.rows = rows.data();
    fp_quantize(call, CpuOptions{});
    const std::int32_t indexes[] = {4, 0, -1, 4, 5};
    std::vector<bf16> want(5 * kSlab * kSize);
    Guarded<bf16> got(want);
    FpDequantizeCall inverse;
    inverse.rows = rows.data();
    inverse.output = got.data();
    inverse.groups = kSlabs * kSlab;
    inverse.group_size = kSize;
    inverse.format = format;
    inverse.indexes = indexes;
    inverse.index_count = 5;
    inverse.groups_an_index = kSlab;
    fp_dequantize(inverse, CpuOptions{3});
    inverse.output = want.data();
    reference::fp_dequantize<bf16>(inverse);
    got.expect(want, std::to_string(format.bits) + " bits");
  }
}

TEST(FpQuantizer, What_does_not_fit_is_refused_and_nothing_to_do_is_no_error) {
  bf16 x[8] = {};
  std::uint8_t rows[32];
  FpQuantizeCall call;
  call.input = x;
  call.groups = 1;
  call.group_size = 6;
  call.format = {6, 2};
  call.rows = rows;
  EXPECT_THROW(fp_quantize(call, CpuOptions{}), std::invalid_argument);
  call.format = {8, 5};
  EXPECT_THROW(fp_quantize(call, CpuOptions{}), std::invalid_argument);
  call.format = {8, 3};
  call.groups = 0;
  fp_quantize(call, CpuOptions{});
  fp_dequantize({}, CpuOptions{});
}

TEST(FpQuantizer, Self_test_is_right_and_without_a_name_it_is_the_processors) {
  char detail[200];
  EXPECT_EQ(ds_self_test_fp_quantizer(nullptr, detail, sizeof detail), DS_SELF_TEST_OK) << detail;
  EXPECT_NE(std::string(detail).find("fp12"), std::string::npos) << detail;
}

}  // namespace
}  // namespace ds

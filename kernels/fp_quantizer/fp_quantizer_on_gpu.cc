// Both functions against reference.h, bit for bit, with output poisoned before and guarded behind.

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "fp_quantizer.h"
#include "on_device.h"
#include "reference.h"

namespace ds {
namespace {

struct Shape {
  std::int64_t groups, size;
};

std::vector<Shape> shapes() {
  std::vector<Shape> all = {{0, 8}, {5, 0}};
  for (std::int64_t size :
       {1,   2,   4,   8,   12,   16,   24,   31,   32,   36,   40,   64,    100,   128,
        256, 264, 512, 520, 1000, 1024, 2048, 2056, 4096, 5000, 8192, 16384, 32768, 65536}) {
    all.push_back({1, size});
    // Numbers of groups that are no multiple of 8: a peer reads and writes behind the end.
    all.push_back({37, size});
    if (size <= 256) all.push_back({1203, size});
  }
  all.push_back({2, 65544});
  all.push_back({1, 300004});
  return all;
}

constexpr FloatFormat kFormats[] = {{12, 7}, {8, 3}, {8, 2}, {6, 2}, {4, 1}};

std::string describe(const FloatFormat& f, const Shape& shape) {
  return "fp" + std::to_string(f.bits) + " with " + std::to_string(f.mantissa) + ", " +
         std::to_string(shape.groups) + " groups of " + std::to_string(shape.size);
}

template <class T>
std::vector<std::uint8_t> compare_quantize(const std::vector<T>& x, const Shape& shape,
                                           const FloatFormat& f, bool stochastic,
                                           std::size_t shift) {
  const auto bytes = static_cast<std::size_t>(shape.groups * fp_row_bytes(shape.size, f));
  const OnDevice<T> input(x, shift);
  const OnDevice<std::uint8_t> rows(bytes, 4 * shift);
  FpQuantizeCall call;
  call.dtype = dtype_of<T>();
  call.groups = shape.groups;
  call.group_size = shape.size;
  call.format = f;
  call.stochastic = stochastic;
  call.random.seed = 42;
  call.random.offset = 7;
  call.input = input.data();
  call.rows = rows.data();
  fp_quantize(call, nullptr);
  std::vector<std::uint8_t> want(bytes, 0xA5);
  if (shape.size == 0) return want;
  call.input = x.data();
  call.rows = want.data();
  reference::fp_quantize<T>(call);
  expect_same(rows.host(), want, describe(f, shape) + (stochastic ? ", stochastic" : ""));
  return want;
}

template <class T>
void compare_dequantize(const std::vector<std::uint8_t>& rows, const Shape& shape,
                        const FloatFormat& f, std::size_t shift) {
  const OnDevice<std::uint8_t> device_rows(rows, 4 * shift);
  const OnDevice<T> output(static_cast<std::size_t>(shape.groups * shape.size), shift);
  FpDequantizeCall call;
  call.dtype = dtype_of<T>();
  call.groups = shape.groups;
  call.group_size = shape.size;
  call.format = f;
  call.rows = device_rows.data();
  call.output = output.data();
  fp_dequantize(call, nullptr);
  std::vector<T> want(static_cast<std::size_t>(shape.groups * shape.size));
  call.rows = rows.data();
  call.output = want.data();
  reference::fp_dequantize<T>(call);
  expect_same(output.host(), want, describe(f, shape) + ", back");
}

template <class T>
class FpQuantizerOnGpu : public testing::Test {};
using Types = testing::Types<float, f16, bf16>;
TYPED_TEST_SUITE(FpQuantizerOnGpu, Types);

TYPED_TEST(FpQuantizerOnGpu, Quantizes_and_comes_back_as_the_reference) {
  NEEDS_A_DEVICE();
  for (const FloatFormat& f : kFormats) {
    for (const Shape& shape : shapes()) {
      if (shape.size * f.bits % 8 != 0) continue;
      const auto x = random_values<TypeParam>(shape.groups * shape.size, 1, 3.0f);
      compare_quantize<TypeParam>(x, shape, f, true, 0);
      const auto rows = compare_quantize<TypeParam>(x, shape, f, false, 0);
      compare_dequantize<TypeParam>(rows, shape, f, 0);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TYPED_TEST(FpQuantizerOnGpu, Takes_what_is_not_aligned_not_finite_tiny_or_zero) {
  NEEDS_A_DEVICE();
  for (const FloatFormat& f : kFormats) {
    for (const std::int64_t size : {16, 256, 4096, 5000}) {
      const Shape shape{8, size};
      auto x = random_values<TypeParam>(8 * size, 3);
      const auto at = [&](std::int64_t group, std::int64_t i) -> TypeParam& {
        return x[static_cast<std::size_t>(group * size + i)];
      };
      from_float(NAN, at(0, 3));
      from_float(INFINITY, at(1, size - 1));
      from_float(-INFINITY, at(2, 0));
      for (std::int64_t i = 0; i < size; ++i) {
        from_float(i % 2 == 0 ? 0.0f : -0.0f, at(3, i));
        from_float(1e-40f * static_cast<float>(i), at(4, i));
        from_float(-2.5f, at(5, i));
        from_float(to_float(at(6, i)) * 1e-4f, at(6, i));
      }
      for (const bool stochastic : {false, true}) {
        for (const std::size_t shift : {0, 1}) {
          const auto rows = compare_quantize<TypeParam>(x, shape, f, stochastic, shift);
          compare_dequantize<TypeParam>(rows, shape, f, shift);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TYPED_TEST(FpQuantizerOnGpu, Decodes_every_code_of_every_format) {
  NEEDS_A_DEVICE();
  for (const FloatFormat& f : kFormats) {
    for (const Shape& shape : {Shape{300, 64}, Shape{3, 36}}) {
      auto rows = random_bytes(shape.groups * fp_row_bytes(shape.size, f), 4);
      compare_dequantize<TypeParam>(rows, shape, f, 0);
    }
  }
}

TYPED_TEST(FpQuantizerOnGpu, Selects_slabs_and_gives_nan_for_those_that_are_not_there) {
  NEEDS_A_DEVICE();
  const std::vector<std::int32_t> indexes = {3, 0, -1, 4, 5, 0, 2147483647, 1};
  for (const FloatFormat& f : kFormats) {
    for (const Shape& shape : {Shape{10, 64}, Shape{15, 512}, Shape{5, 4}, Shape{5, 36}}) {
      const auto rows = random_bytes(shape.groups * fp_row_bytes(shape.size, f), 5);
      const std::int64_t slab = shape.groups / 5;
      const auto size = static_cast<std::size_t>(slab * 8 * shape.size);
      const OnDevice<std::uint8_t> device_rows(rows);
      const OnDevice<std::int32_t> device_indexes(indexes);
      const OnDevice<TypeParam> output(size);
      FpDequantizeCall call;
      call.dtype = dtype_of<TypeParam>();
      call.groups = shape.groups;
      call.group_size = shape.size;
      call.format = f;
      call.rows = device_rows.data();
      call.output = output.data();
      call.indexes = device_indexes.data();
      call.index_count = 8;
      call.groups_an_index = slab;
      fp_dequantize(call, nullptr);
      std::vector<TypeParam> want(size);
      call.rows = rows.data();
      call.output = want.data();
      call.indexes = indexes.data();
      reference::fp_dequantize<TypeParam>(call);
      expect_same(output.host(), want, describe(f, shape) + ", selected");
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(FpQuantizerOnGpuLarge, More_than_two_to_the_31_elements_reach_the_last_row) {
  NEEDS_A_DEVICE();
  constexpr std::int64_t kGroup = 512, kGroups = (std::int64_t{1} << 31) / kGroup + 3;
  constexpr FloatFormat kFormat{8, 3};
  const std::int64_t pitch = fp_row_bytes(kGroup, kFormat);
  std::size_t free_bytes = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free_bytes, &total), "while asking for free memory");
  if (free_bytes < static_cast<std::size_t>(kGroup * kGroups) * 6) {
    GTEST_SKIP() << "not enough device memory";
  }
  const DeviceMemory input(kGroup * kGroups * 2), rows(static_cast<std::size_t>(kGroups * pitch)),
      back(kGroup * kGroups * 2);
  check_cuda(cudaMemset(input.data(), 0, input.size()), "memset");
  check_cuda(cudaMemset(back.data(), 0xA5, back.size()), "memset");
  const auto x = random_values<bf16>(3 * kGroup, 13);
  check_cuda(cudaMemcpy(static_cast<bf16*>(input.data()) + (kGroups - 3) * kGroup, x.data(),
                        3 * kGroup * 2, cudaMemcpyHostToDevice),
             "copy");
  FpQuantizeCall call;
  call.input = input.data();
  call.groups = kGroups;
  call.group_size = kGroup;
  call.format = kFormat;
  call.rows = static_cast<std::uint8_t*>(rows.data());
  fp_quantize(call, nullptr);
  FpDequantizeCall inverse;
  inverse.rows = call.rows;
  inverse.output = back.data();
  inverse.groups = kGroups;
  inverse.group_size = kGroup;
  inverse.format = kFormat;
  fp_dequantize(inverse, nullptr);
  std::vector<std::uint8_t> want_rows(static_cast<std::size_t>(3 * pitch));
  std::vector<bf16> want(3 * kGroup), got(3 * kGroup);
  call.input = x.data();
  call.groups = 3;
  call.rows = want_rows.data();
  reference::fp_quantize<bf16>(call);
  inverse.groups = 3;
  inverse.rows = want_rows.data();
  inverse.output = want.data();
  reference::fp_dequantize<bf16>(inverse);
  check_cuda(cudaMemcpy(got.data(), static_cast<bf16*>(back.data()) + (kGroups - 3) * kGroup,
                        3 * kGroup * 2, cudaMemcpyDeviceToHost),
             "copy");
  expect_same(got, want, "the last three rows");
}

TEST(FpQuantizerOnGpuSelfTest, Gives_right_numbers_in_one_line) {
  NEEDS_A_DEVICE();
  char detail[200] = "";
  EXPECT_EQ(ds_self_test_fp_quantizer("cuda", detail, sizeof detail), DS_SELF_TEST_OK) << detail;
  EXPECT_EQ(ds_self_test_fp_quantizer("cpu", detail, sizeof detail), DS_SELF_TEST_OK) << detail;
}

}  // namespace
}  // namespace ds

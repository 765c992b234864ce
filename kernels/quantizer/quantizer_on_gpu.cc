// Every function against reference.h, bit for bit, with output poisoned before and guarded behind.

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "on_device.h"
#include "quantizer.h"
#include "reference.h"

namespace ds {
namespace {

struct Shape {
  std::int64_t groups, size;
};

// Test sizes around warps, blocks, vectors and chunks; what teams hold and what they do not.
std::vector<Shape> shapes() {
  std::vector<Shape> all = {{0, 8}, {5, 0}};
  for (std::int64_t size : {1,    2,    4,    7,    8,    16,   24,    31,    32,    33,
                            40,   64,   100,  128,  256,  264,  512,   520,   1000,  1024,
                            2048, 2056, 4096, 4098, 5000, 8192, 16384, 20000, 32768, 65536}) {
    all.push_back({1, size});
    all.push_back({37, size});
    if (size <= 256) all.push_back({1200, size});
  }
  all.push_back({2, 65544});
  all.push_back({3, 200000});
  all.push_back({1, 300001});
  all.push_back({1, 300002});
  return all;
}

struct Format {
  QuantFormat format;
  std::string name;
};
std::vector<Format> formats() {
  return {{{8, true}, "int8 symmetric"},
          {{8, false}, "int8 asymmetric"},
          {{4, true}, "int4 symmetric"},
          {{4, false}, "int4 asymmetric"}};
}

std::string describe(const Format& format, const Shape& shape) {
  return format.name + ", " + std::to_string(shape.groups) + " groups of " +
         std::to_string(shape.size);
}

template <class T>
void compare_quantize(const std::vector<T>& x, const Shape& shape, const Format& format,
                      const Swizzle& swizzle, bool feedback, std::size_t shift) {
  const std::size_t bytes = x.size() * static_cast<std::size_t>(format.format.bits) / 8;
  const auto params_size =
      static_cast<std::size_t>(shape.groups * (format.format.symmetric ? 1 : 2));
  std::vector<T> error =
      feedback ? random_values<T>(shape.groups * shape.size, 99, 0.1f) : std::vector<T>{};
  const OnDevice<T> input(x, shift);
  const OnDevice<T> device_error(error, shift);
  const OnDevice<std::uint8_t> codes(bytes, shift);
  const OnDevice<float> params(params_size);
  QuantizeCall call;
  call.dtype = dtype_of<T>();
  call.groups = shape.groups;
  call.group_size = shape.size;
  call.format = format.format;
  call.swizzle = swizzle;
  call.error_beta = 0.8f;
  call.input = input.data();
  call.codes = codes.data();
  call.params = params.data();
  if (feedback) call.error = device_error.data();
  quantize(call, nullptr);
  std::vector<std::uint8_t> want_codes(bytes, 0xA5);
  std::vector<float> want_params(params_size, NAN);
  call.input = x.data();
  call.codes = want_codes.data();
  call.params = want_params.data();
  if (feedback) call.error = error.data();
  reference::quantize<T>(call);
  const std::string what = describe(format, shape);
  if (shape.size == 0) return;  // Nothing is written.
  expect_same(codes.host(), want_codes, what + ", codes");
  expect_same(params.host(), want_params, what + ", params");
  if (feedback) expect_same(device_error.host(), error, what + ", error");
  expect_same(input.host(), x, what + ", the input was written");
}

template <class T>
class QuantizerOnGpu : public testing::Test {};
using Types = testing::Types<float, f16, bf16>;
TYPED_TEST_SUITE(QuantizerOnGpu, Types);

TYPED_TEST(QuantizerOnGpu, Quantizes_every_size_and_format_as_the_reference) {
  NEEDS_A_DEVICE();
  for (const Shape& shape : shapes()) {
    for (const Format& format : formats()) {
      if (format.format.bits == 4 && shape.size % 2 != 0) continue;
      const auto x = random_values<TypeParam>(shape.groups * shape.size, 1, 3.0f);
      compare_quantize<TypeParam>(x, shape, format, {}, false, 0);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TYPED_TEST(QuantizerOnGpu, Quantizes_with_error_feedback_and_swizzling_as_the_reference) {
  NEEDS_A_DEVICE();
  for (const std::int64_t size : {2, 8, 34, 64, 256, 2048, 8192, 16384, 40000}) {
    for (const Format& format : formats()) {
      for (const Swizzle& swizzle : {Swizzle{1, 1, 1}, Swizzle{1, 2, 4}, Swizzle{3, 2, 2}}) {
        const Shape shape{24, size};
        const auto x = random_values<TypeParam>(24 * size, 2);
        compare_quantize<TypeParam>(x, shape, format, swizzle, true, 0);
        compare_quantize<TypeParam>(x, shape, format, swizzle, false, 0);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TYPED_TEST(QuantizerOnGpu, Quantizes_what_is_not_aligned_not_finite_tiny_or_zero) {
  NEEDS_A_DEVICE();
  for (const Format& format : formats()) {
    for (const std::int64_t size : {16, 512, 4096, 10000}) {
      const Shape shape{9, size};
      auto x = random_values<TypeParam>(9 * size, 3);
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
        from_float(to_float(at(6, i)) * 1e-6f, at(6, i));
        from_float(-std::fabs(to_float(at(7, i))), at(7, i));
      }
      compare_quantize<TypeParam>(x, shape, format, {}, false, 0);
      compare_quantize<TypeParam>(x, shape, format, {}, false, 1);
      compare_quantize<TypeParam>(x, shape, format, {1, 3, 3}, true, 1);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

template <class T>
void compare_fake(const Shape& shape, int bits, bool symmetric, bool stochastic, bool from_device) {
  auto x = random_values<T>(shape.groups * shape.size, 4, 2.0f);
  const OnDevice<T> values(x);
  const OnDevice<std::uint32_t> scratch(static_cast<std::size_t>(2 * shape.groups));
  const OnDevice<std::uint64_t> random(std::vector<std::uint64_t>{1234567890123u, 77u});
  FakeQuantizeCall call;
  call.values = values.data();
  call.dtype = dtype_of<T>();
  call.groups = shape.groups;
  call.group_size = shape.size;
  call.bits = bits;
  call.symmetric = symmetric;
  call.stochastic = stochastic;
  call.random = {1234567890123u, 77u, nullptr};
  if (from_device) call.random = {0, 0, random.data()};
  if (fake_quantize_needs_scratch(call)) call.scratch = scratch.data();
  fake_quantize(call, nullptr);
  call.values = x.data();
  call.random = {1234567890123u, 77u, nullptr};
  reference::fake_quantize<T>(call);
  expect_same(values.host(), x,
              describe({{bits, symmetric}, stochastic ? "stochastic" : "nearest"}, shape) + ", " +
                  std::to_string(bits) + " bits");
}

TYPED_TEST(QuantizerOnGpu, Fake_quantizes_as_the_reference) {
  NEEDS_A_DEVICE();
  for (const Shape& shape : shapes()) {
    for (const bool symmetric : {true, false}) {
      for (const bool stochastic : {false, true}) {
        compare_fake<TypeParam>(shape, 8, symmetric, stochastic, false);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
  for (int bits = 2; bits <= 16; ++bits) {
    for (const bool stochastic : {false, true}) {
      compare_fake<TypeParam>({19, 256}, bits, true, stochastic, true);
      compare_fake<TypeParam>({19, 258}, bits, false, stochastic, true);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TYPED_TEST(QuantizerOnGpu, Dequantizes_as_the_reference) {
  NEEDS_A_DEVICE();
  for (const Shape& shape : shapes()) {
    for (const Format& format : formats()) {
      if (format.format.bits == 4 && shape.size % 2 != 0) continue;
      for (const std::size_t shift : {0, 1}) {
        const std::int64_t size = shape.groups * shape.size;
        const auto codes = random_bytes(size * format.format.bits / 8, 5);
        const auto params =
            random_values<float>(shape.groups * (format.format.symmetric ? 1 : 2), 6, 0.1f);
        const OnDevice<std::uint8_t> device_codes(codes, shift);
        const OnDevice<float> device_params(params);
        const OnDevice<TypeParam> output(static_cast<std::size_t>(size), shift);
        DequantizeCall call;
        call.codes = device_codes.data();
        call.params = device_params.data();
        call.output = output.data();
        call.dtype = dtype_of<TypeParam>();
        call.groups = shape.groups;
        call.group_size = shape.size;
        call.format = format.format;
        dequantize(call, nullptr);
        std::vector<TypeParam> want(static_cast<std::size_t>(size));
        call.codes = codes.data();
        call.params = params.data();
        call.output = want.data();
        reference::dequantize<TypeParam>(call);
        expect_same(output.host(), want, describe(format, shape));
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TYPED_TEST(QuantizerOnGpu, Reduces_as_the_reference) {
  NEEDS_A_DEVICE();
  struct Case {
    std::int64_t size, in_groups, out_groups;
  };
  for (const Case& c : {Case{0, 1, 1}, Case{8, 1, 1}, Case{64, 2, 4}, Case{1024, 8, 1},
                        Case{4096, 4, 16}, Case{16384, 2, 2}, Case{34, 17, 1}, Case{40000, 1, 1},
                        Case{65536, 64, 1}, Case{65536, 16, 512}}) {
    for (const Format& format : formats()) {
      for (const std::int64_t tensors : {1, 2, 3, 8}) {
        for (const bool feedback : {false, true}) {
          const int per_group = format.format.symmetric ? 1 : 2;
          const auto codes = random_bytes(tensors * c.size * format.format.bits / 8, 7);
          const auto params = random_values<float>(tensors * c.in_groups * per_group, 8, 0.1f);
          auto error = random_values<TypeParam>(c.size, 9, 0.01f);
          const OnDevice<std::uint8_t> device_codes(codes);
          const OnDevice<float> device_params(params);
          const OnDevice<TypeParam> device_error(error);
          const auto bytes = static_cast<std::size_t>(c.size * format.format.bits / 8);
          const auto out_params_size = static_cast<std::size_t>(c.out_groups * per_group);
          const OnDevice<std::uint8_t> out(bytes);
          const OnDevice<float> out_params(out_params_size);
          ReduceCall call;
          call.codes = device_codes.data();
          call.params = device_params.data();
          call.tensors = tensors;
          call.size = c.size;
          call.in_groups = c.in_groups;
          call.out_groups = c.out_groups;
          call.format = format.format;
          call.out_codes = out.data();
          call.out_params = out_params.data();
          call.error = feedback ? device_error.data() : nullptr;
          call.error_dtype = dtype_of<TypeParam>();
          call.error_beta = 0.7f;
          quantized_reduce(call, nullptr);
          if (c.size == 0) continue;
          std::vector<std::uint8_t> want(bytes, 0xA5);
          std::vector<float> want_params(out_params_size, NAN);
          call.codes = codes.data();
          call.params = params.data();
          call.out_codes = want.data();
          call.out_params = want_params.data();
          call.error = feedback ? error.data() : nullptr;
          reference::quantized_reduce<TypeParam>(call);
          const std::string what = format.name + ", " + std::to_string(tensors) + " tensors of " +
                                   std::to_string(c.size);
          expect_same(out.host(), want, what);
          expect_same(out_params.host(), want_params, what + ", params");
          if (feedback) expect_same(device_error.host(), error, what + ", error");
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(QuantizerOnGpuToHalf, Divides_and_adds_as_the_reference) {
  NEEDS_A_DEVICE();
  for (const int bits : {8, 4}) {
    for (const Shape& shape :
         {Shape{0, 8}, Shape{7, 8}, Shape{300, 64}, Shape{33, 34}, Shape{3, 4096}}) {
      const std::int64_t size = shape.groups * shape.size;
      const auto codes = random_bytes(size * bits / 8, 10);
      auto scales = random_values<f16>(shape.groups, 11, 20.0f);
      const auto minimums = random_values<f16>(shape.groups, 12);
      if (scales.size() > 6) {
        const std::uint16_t odd[] = {0x0000, 0x8000, 0x0001, 0x7c00, 0x7e00, 0x7bff, 0x03ff};
        for (std::size_t i = 0; i < 7; ++i) scales[i].bits = odd[i];
      }
      const OnDevice<std::uint8_t> device_codes(codes);
      const OnDevice<f16> device_scales(scales), device_minimums(minimums);
      const OnDevice<f16> output(static_cast<std::size_t>(size));
      const auto bits_of = [](const f16* p) { return reinterpret_cast<const std::uint16_t*>(p); };
      IntToHalfCall call{device_codes.data(),
                         bits_of(device_scales.data()),
                         bits_of(device_minimums.data()),
                         reinterpret_cast<std::uint16_t*>(output.data()),
                         shape.groups,
                         shape.size,
                         bits};
      int_to_half(call, nullptr);
      std::vector<f16> want(static_cast<std::size_t>(size));
      call = {codes.data(),
              bits_of(scales.data()),
              bits_of(minimums.data()),
              reinterpret_cast<std::uint16_t*>(want.data()),
              shape.groups,
              shape.size,
              bits};
      reference::int_to_half(call);
      expect_same(output.host(), want, std::to_string(bits) + " bits to half");
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(QuantizerOnGpuLarge, More_than_two_to_the_31_elements_reach_the_last_group) {
  NEEDS_A_DEVICE();
  constexpr std::int64_t kGroup = 2048, kGroups = (std::int64_t{1} << 31) / kGroup + 3;
  constexpr std::int64_t kSize = kGroup * kGroups;
  std::size_t free_bytes = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free_bytes, &total), "while asking for free memory");
  if (free_bytes < static_cast<std::size_t>(kSize) * 6) GTEST_SKIP() << "not enough device memory";
  const DeviceMemory input(kSize * 2), codes(kSize), params(kGroups * 4), back(kSize * 2);
  check_cuda(cudaMemset(input.data(), 0, input.size()), "memset");
  check_cuda(cudaMemset(codes.data(), 0xA5, codes.size()), "memset");
  check_cuda(cudaMemset(back.data(), 0xA5, back.size()), "memset");
  // The last three groups, and three from the middle, hold numbers.
  const auto x = random_values<f16>(3 * kGroup, 13);
  const std::int64_t places[] = {(kGroups - 3) * kGroup, kGroups / 2 * kGroup};
  for (const std::int64_t place : places) {
    check_cuda(cudaMemcpy(static_cast<f16*>(input.data()) + place, x.data(), 3 * kGroup * 2,
                          cudaMemcpyHostToDevice),
               "copy");
  }
  QuantizeCall call;
  call.input = input.data();
  call.dtype = DType::f16;
  call.groups = kGroups;
  call.group_size = kGroup;
  call.codes = static_cast<std::uint8_t*>(codes.data());
  call.params = static_cast<float*>(params.data());
  quantize(call, nullptr);
  DequantizeCall inverse;
  inverse.codes = call.codes;
  inverse.params = call.params;
  inverse.output = back.data();
  inverse.dtype = DType::f16;
  inverse.groups = kGroups;
  inverse.group_size = kGroup;
  dequantize(inverse, nullptr);
  auto want = x;
  FakeQuantizeCall fake;
  fake.values = want.data();
  fake.dtype = DType::f16;
  fake.groups = 3;
  fake.group_size = kGroup;
  reference::fake_quantize<f16>(fake);
  std::vector<f16> got(3 * kGroup);
  for (const std::int64_t place : places) {
    check_cuda(cudaMemcpy(got.data(), static_cast<f16*>(back.data()) + place, 3 * kGroup * 2,
                          cudaMemcpyDeviceToHost),
               "copy");
    expect_same(got, want, "at " + std::to_string(place));
  }
}

TEST(QuantizerOnGpuGraph, A_replayed_graph_takes_its_randomness_from_the_device) {
  NEEDS_A_DEVICE();
  const Shape shape{64, 512};
  const auto x = random_values<f16>(shape.groups * shape.size, 14);
  const OnDevice<f16> values(x);
  const OnDevice<std::uint64_t> random(std::vector<std::uint64_t>{1, 2});
  FakeQuantizeCall call;
  call.values = values.data();
  call.dtype = DType::f16;
  call.groups = shape.groups;
  call.group_size = shape.size;
  call.bits = 4;
  call.stochastic = true;
  call.random.device = random.data();
  cudaStream_t stream;
  check_cuda(cudaStreamCreate(&stream), "stream");
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  fake_quantize(call, stream);
  cudaGraph_t graph;
  check_cuda(cudaStreamEndCapture(stream, &graph), "end of capture");
  cudaGraphExec_t executable;
  check_cuda(cudaGraphInstantiate(&executable, graph, 0), "instantiation");
  for (const std::uint64_t offset : {2u, 3u}) {
    const std::uint64_t source[] = {1, offset};
    check_cuda(cudaMemcpy(values.data(), x.data(), x.size() * 2, cudaMemcpyHostToDevice), "copy");
    check_cuda(cudaMemcpy(random.data(), source, sizeof source, cudaMemcpyHostToDevice), "copy");
    check_cuda(cudaGraphLaunch(executable, stream), "replay");
    check_cuda(cudaStreamSynchronize(stream), "synchronize");
    auto want = x;
    FakeQuantizeCall expected = call;
    expected.values = want.data();
    expected.random = {1, offset, nullptr};
    reference::fake_quantize<f16>(expected);
    expect_same(values.host(), want, "replay");
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

TEST(QuantizerOnGpuSelfTest, Gives_right_numbers_in_one_line) {
  NEEDS_A_DEVICE();
  char detail[200] = "";
  EXPECT_EQ(ds_self_test_quantizer("cuda", detail, sizeof detail), DS_SELF_TEST_OK) << detail;
  EXPECT_EQ(ds_self_test_quantizer("cpu", detail, sizeof detail), DS_SELF_TEST_OK) << detail;
}

}  // namespace
}  // namespace ds

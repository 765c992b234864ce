// spatial_inference on the CPU, to the last bit.

#include "spatial_inference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "self_test.h"

namespace ds {
namespace {

struct Problem {
  Problem(DType dtype, std::int64_t pixels_, std::int64_t channels_, int terms_)
      : pixels(pixels_),
        channels(channels_),
        terms(terms_),
        x(dtype, pixels * channels),
        other(dtype, pixels * channels),
        bias(dtype, channels),
        other_bias(dtype, channels),
        out(dtype, pixels * channels) {
    Random random(static_cast<std::uint64_t>(pixels * 31 + channels));
    for (std::int64_t i = 0; i < pixels * channels; ++i) {
      x.set(i, 4 * random.next());
      other.set(i, i % 17 == 0 ? -0.0 : random.next());
    }
    for (std::int64_t i = 0; i < channels; ++i) {
      bias.set(i, i % 5 == 0 ? -0.0 : random.next());
      other_bias.set(i, random.next());
    }
  }
  SpatialInferenceSum sum() {
    return {x.data(),
            bias.data(),
            terms > 1 ? other.data() : nullptr,
            terms > 2 ? other_bias.data() : nullptr,
            out.data(),
            pixels,
            channels,
            x.dtype()};
  }
  // The definition, rounded where it says.
  float want(std::int64_t i) const {
    const auto at = [](const Buffer& b, std::int64_t k) { return static_cast<float>(b.get(k)); };
    float value = at(x, i) + at(bias, i % channels);
    if (terms == 2) value = value + at(other, i);
    if (terms == 3) value = value + (at(other, i) + at(other_bias, i % channels));
    return value;
  }

  std::int64_t pixels, channels;
  int terms;
  Buffer x, other, bias, other_bias, out;
};

Buffer wanted(const Problem& p) {
  Buffer want(p.x.dtype(), p.pixels * p.channels);
  for (std::int64_t i = 0; i < p.pixels * p.channels; ++i) want.set(i, p.want(i));
  return want;
}

TEST(SpatialInference, Every_sum_type_channel_count_and_path_is_right_to_the_last_bit) {
  for (const CpuIsa isa : runnable_isas()) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      for (const std::int64_t channels : {1, 3, 8, 31, 32, 33, 255, 256, 320, 4100}) {
        for (const std::int64_t pixels : {0, 1, 2, 33, 65}) {
          for (int terms = 1; terms <= 3; ++terms) {
            Problem p(dtype, pixels, channels, terms);
            spatial_inference_add(p.sum(), CpuOptions{1, isa});
            ASSERT_EQ(p.out, wanted(p)) << isa_name(isa) << ", " << dtype_name(dtype) << ", "
                                        << pixels << " × " << channels << ", " << terms;
          }
        }
      }
    }
  }
}

TEST(SpatialInference, Any_number_of_threads_and_an_output_that_is_an_input_give_the_same) {
  for (const std::int64_t channels : {7, 320}) {
    for (const int threads : {1, 2, 3, 8}) {
      Problem p(DType::bf16, 3001, channels, 3);
      const Buffer want = wanted(p);
      spatial_inference_add(p.sum(), CpuOptions{threads, CpuIsa::automatic});
      ASSERT_EQ(p.out, want) << threads;
      SpatialInferenceSum in_place = p.sum();
      in_place.out = p.x.data();
      spatial_inference_add(in_place, CpuOptions{threads, CpuIsa::automatic});
      ASSERT_EQ(p.x, want) << threads;
    }
  }
}

TEST(SpatialInference, What_is_not_a_number_stays_none_and_what_overflows_is_infinite) {
  for (const CpuIsa isa : runnable_isas()) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      Problem p(dtype, 40, 3, 1);
      p.x.set(4, NAN);
      p.x.set(77, INFINITY);
      p.x.set(78, dtype == DType::f16 ? 65504 : 3e38);
      p.bias.set(0, dtype == DType::f16 ? 65504 : 3e38);
      spatial_inference_add(p.sum(), CpuOptions{1, isa});
      EXPECT_TRUE(std::isnan(p.out.get(4)));
      EXPECT_EQ(p.out.get(77), INFINITY);
      EXPECT_EQ(p.out.get(78), INFINITY);
      EXPECT_TRUE(std::isfinite(p.out.get(5)));
    }
  }
}

TEST(SpatialInference, What_is_wrong_is_refused) {
  const auto refused = [](const SpatialInferenceSum& sum) {
    EXPECT_THROW(spatial_inference_add(sum, CpuOptions{}), std::invalid_argument);
  };
  float x[4];
  refused({nullptr, x, nullptr, nullptr, x, 1, 4, DType::f32});
  refused({x, x, nullptr, x, x, 1, 4, DType::f32});
  refused({x, x, nullptr, nullptr, x, -1, 4, DType::f32});
  refused({reinterpret_cast<char*>(x) + 1, x, nullptr, nullptr, x, 1, 3, DType::f32});
  refused({x, x, nullptr, nullptr, x, std::int64_t{1} << 30, std::int64_t{1} << 30, DType::f32});
}

TEST(SpatialInference, Self_test_is_right_and_without_a_name_it_is_the_processors) {
  char detail[200];
  for (const char* device : {"cpu", "", static_cast<const char*>(nullptr)}) {
    EXPECT_EQ(ds_self_test_spatial_inference(device, detail, sizeof detail), DS_SELF_TEST_OK)
        << detail;
    EXPECT_NE(std::string(detail).find("scalar"), std::string::npos) << detail;
  }
  EXPECT_EQ(ds_self_test_spatial_inference("tpu", detail, sizeof detail), DS_SELF_TEST_SKIPPED);
}

}  // namespace
}  // namespace ds

// spatial_inference on a device, element by element against its reference.

#include <gtest/gtest.h>

#include "cpu_isa.h"
#include "cuda_optimizer_problem.cuh"
#include "reference.h"
#include "spatial_inference.h"

namespace ds {
namespace {

HostAndDevice random_run(DType dtype, std::int64_t size, int offset, std::uint64_t seed) {
  HostAndDevice run(dtype, size, offset);
  Random random(seed);
  for (std::int64_t i = 0; i < size; ++i) run.set(i, random.next());
  run.upload();
  return run;
}

TEST(SpatialInference, Every_sum_type_channel_count_and_offset_is_right) {
  DS_NEEDS_DEVICE();
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const std::int64_t channels : {1, 3, 8, 31, 32, 320, 4100}) {
      for (const std::int64_t pixels : {0, 1, 2, 33, 1025}) {
        for (const int offset : {0, 1}) {
          for (int terms = 1; terms <= 3; ++terms) {
            const std::int64_t size = pixels * channels;
            const HostAndDevice x = random_run(dtype, size, offset, 1),
                                other = random_run(dtype, size, offset, 2),
                                bias = random_run(dtype, channels, offset, 3),
                                bias2 = random_run(dtype, channels, 0, 4);
            const HostAndDevice out(dtype, size, offset);
            spatial_inference_add(
                {x.at(), bias.at(), terms > 1 ? other.at() : nullptr,
                 terms > 2 ? bias2.at() : nullptr, out.at(), pixels, channels, dtype},
                CudaOptions{});
            const Buffer got = out.result();
            Comparison comparison;
            for (std::int64_t i = 0; i < size; ++i) {
              comparison.check("out", i, got,
                               spatial_inference_reference(
                                   x.get(i), bias.get(i % channels), terms > 1 ? other.get(i) : 0,
                                   terms > 2 ? bias2.get(i % channels) : 0));
            }
            ASSERT_TRUE(comparison.ok()) << pixels << " × " << channels << " from " << offset
                                         << ": " << comparison.failure();
          }
        }
      }
    }
  }
}

TEST(SpatialInference, What_is_wrong_is_refused) {
  const auto refused = [](const SpatialInferenceSum& sum) {
    EXPECT_THROW(spatial_inference_add(sum, CudaOptions{}), std::invalid_argument);
  };
  float x[4];
  refused({nullptr, x, nullptr, nullptr, x, 1, 4, DType::f32});
  refused({x, x, nullptr, x, x, 1, 4, DType::f32});
  refused({x, x, nullptr, nullptr, x, -1, 4, DType::f32});
  refused({reinterpret_cast<char*>(x) + 1, x, nullptr, nullptr, x, 1, 3, DType::f32});
}

TEST(SpatialInference, Self_test_is_right) {
  char detail[200];
  const int status = ds_self_test_spatial_inference("cuda", detail, sizeof detail);
  EXPECT_EQ(status, have_device() ? DS_SELF_TEST_OK : DS_SELF_TEST_SKIPPED) << detail;
}

}  // namespace
}  // namespace ds

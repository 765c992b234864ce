// What defines the answer of spatial_inference, and the channel of an element.

#include <gtest/gtest.h>

#include "channel.h"
#include "reference.h"

namespace ds {
namespace {

TEST(SpatialInferenceReference, Adds_what_is_there) {
  EXPECT_EQ(spatial_inference_reference(1, 2, 0, 0).value, 3);
  EXPECT_EQ(spatial_inference_reference(1, 2, 4, 8).value, 15);
  EXPECT_EQ(spatial_inference_reference(1, -2, 4, -8).scale, 15);
}

TEST(SpatialInferenceChannels, Are_the_remainder_for_any_number_and_index) {
  for (const std::uint64_t channels :
       std::initializer_list<std::uint64_t>{1ull, 2ull, 3ull, 5ull, 7ull, 320ull, 4096ull, 12289ull,
                                            (1ull << 31) + 1, (1ull << 40) - 1, 1ull << 40}) {
    const Channels of(channels);
    for (const std::uint64_t base :
         std::initializer_list<std::uint64_t>{0ull, channels, 2 * channels, 1000003 * channels,
                                              (1ull << 40) / channels * channels, 1ull << 40}) {
      for (std::uint64_t i = base < 3 ? 0 : base - 3; i < base + 10; ++i) {
        ASSERT_EQ(of.of(i), i % channels) << i << " of " << channels;
      }
    }
  }
}

}  // namespace
}  // namespace ds

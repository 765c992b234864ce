// What defines the answer of fused_lion, against numbers worked out by hand.

#include <gtest/gtest.h>

#include "reference.h"

namespace ds {
namespace {

TEST(FusedLionReference, Moves_by_the_sign_and_not_at_all_where_it_is_zero) {
  FusedLionOptions o{0.5, 0.9, 0.75, 0.0};
  EXPECT_DOUBLE_EQ(fused_lion_reference(2, 1e-30, 0, o).param.value, 1.5);
  EXPECT_DOUBLE_EQ(fused_lion_reference(2, -3, 0, o).param.value, 2.5);
  EXPECT_DOUBLE_EQ(fused_lion_reference(2, 0, 0, o).param.value, 2.0);
  EXPECT_TRUE(std::isnan(fused_lion_reference(2, NAN, 0, o).param.value));
}

TEST(FusedLionReference, Momentum_decides_before_it_is_updated) {
  FusedLionOptions o{0.5, 0.9, 0.75, 0.1};
  const FusedLionExpected want = fused_lion_reference(2, -4, 1, o);  // c = 0.9 - 0.4 > 0
  EXPECT_DOUBLE_EQ(want.param.value, 2 - 0.05 * 2 - 0.5);
  EXPECT_DOUBLE_EQ(want.exp_avg.value, 0.75 - 1.0);
  EXPECT_DOUBLE_EQ(fused_lion_reference(2, -16, 1, o, 0.25).exp_avg.value, want.exp_avg.value);
  EXPECT_FALSE(want.sign_is_open);
  EXPECT_TRUE(fused_lion_reference(2, -9, 1 + 1e-9, o).sign_is_open);
}

}  // namespace
}  // namespace ds

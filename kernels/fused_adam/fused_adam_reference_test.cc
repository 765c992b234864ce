// What defines the answer of fused_adam, against numbers worked out by hand, and its factors.

#include <gtest/gtest.h>

#include "factors.h"
#include "reference.h"

namespace ds {
namespace {

TEST(FusedAdamReference, The_first_step_moves_by_lr_whatever_the_gradient) {
  FusedAdamOptions o;
  o.lr = 0.5;
  o.eps = 0;
  for (const double g : {1e-20, 3.0, -7.0}) {
    const FusedAdamExpected want = fused_adam_reference(2.0, g, 0, 0, o);
    EXPECT_NEAR(want.param.value, g > 0 ? 1.5 : 2.5, 1e-12);
    EXPECT_NEAR(want.exp_avg.value, 0.1 * g, std::fabs(g) * 1e-12);
    EXPECT_NEAR(want.exp_avg_sq.value, 0.001 * g * g, g * g * 1e-12);
  }
}

TEST(FusedAdamReference, A_second_step_by_hand) {
  FusedAdamOptions o{2, 0.1, 0.5, 0.75, 0.25, 0.0, true, true};
  // m = 0.5·4 + 0.5·2 = 3, v = 0.75·8 + 0.25·4 = 7; m/(1 - 0.25) = 4, √(7/(1 - 0.5625)) = 4
  const FusedAdamExpected want = fused_adam_reference(1.0, 2.0, 4.0, 8.0, o);
  EXPECT_DOUBLE_EQ(want.exp_avg.value, 3.0);
  EXPECT_DOUBLE_EQ(want.exp_avg_sq.value, 7.0);
  EXPECT_DOUBLE_EQ(want.param.value, 1.0 - 0.1 * 4.0 / 4.25);
  o.bias_correction = false;
  EXPECT_DOUBLE_EQ(fused_adam_reference(1.0, 2.0, 4.0, 8.0, o).param.value,
                   1.0 - 0.1 * 3.0 / (std::sqrt(7.0) + 0.25));
}

TEST(FusedAdamReference, Decay_is_of_the_parameter_or_of_the_gradient) {
  FusedAdamOptions o{1, 0.1, 0.0, 0.0, 0.0, 0.5, true, true};
  EXPECT_DOUBLE_EQ(fused_adam_reference(4.0, 1.0, 0, 0, o).param.value, 4.0 - 0.2 - 0.1);
  o.adamw = false;
  EXPECT_DOUBLE_EQ(fused_adam_reference(4.0, 1.0, 0, 0, o).exp_avg.value, 3.0);
}

TEST(FusedAdamReference, Gradients_are_unscaled_and_then_clipped) {
  EXPECT_DOUBLE_EQ(grad_multiplier_reference({4.0, 0.0}, 100.0), 0.25);
  EXPECT_NEAR(grad_multiplier_reference({4.0, 5.0}, 100.0), 0.25 / 5.0, 1e-8);
  EXPECT_DOUBLE_EQ(grad_multiplier_reference({4.0, 26.0}, 100.0), 0.25);
  FusedAdamOptions o;
  EXPECT_DOUBLE_EQ(fused_adam_reference(1, 8, 0, 0, o, 0.25).exp_avg.value,
                   fused_adam_reference(1, 2, 0, 0, o).exp_avg.value);
}

TEST(FusedAdamFactors, Corrections_are_computed_in_double) {
  FusedAdamOptions o;
  o.weight_decay = 0.1;
  for (const std::int64_t step : {1, 2, 1000, 1000000}) {
    o.step = step;
    const FusedAdamFactors f = factors_of(o);
    EXPECT_EQ(f.weight2, static_cast<float>(1 - 0.999));
    EXPECT_NE(f.weight2, 1.0f - 0.999f);
    EXPECT_EQ(f.step_size,
              static_cast<float>(1e-3 / (1 - std::pow(0.9, static_cast<double>(step)))));
    EXPECT_EQ(f.decay, 1e-4f);
    EXPECT_EQ(f.l2, 0.0f);
  }
  o.adamw = false;
  o.bias_correction = false;
  EXPECT_EQ(factors_of(o).l2, 0.1f);
  EXPECT_EQ(factors_of(o).decay, 0.0f);
  EXPECT_EQ(factors_of(o).step_size, 1e-3f);
}

}  // namespace
}  // namespace ds

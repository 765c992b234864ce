#include "evoformer_attn.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "reference.h"
#include "self_test.h"

namespace ds {
namespace {

void run(EvoformerCase& c, const CpuOptions& cpu) {
  evoformer_attn(c.problem(), cpu);
  evoformer_attn_backward(c.problem(), c.gradients(), cpu);
}

bool same(const EvoformerCase& a, const EvoformerCase& b) {
  return a.out == b.out && a.lse == b.lse && a.grad_q == b.grad_q && a.grad_k == b.grad_k &&
         a.grad_v == b.grad_v && a.grad_bias1 == b.grad_bias1 && a.grad_bias2 == b.grad_bias2;
}

TEST(EvoformerAttn, Agrees_with_the_reference_element_by_element_on_every_path_type_and_shape) {
  for (const CpuIsa isa : runnable_isas()) {
    for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
      for (const std::int64_t length : {1, 2, 15, 16, 17, 63, 64, 65, 130}) {
        for (const std::int64_t dim : {8, 20, 32, 128}) {
          if (length > 65 && dim != 32) continue;
          for (const int biases : {0, 1, 2, 3}) {
            if (biases < 3 && length != 17) continue;
            EvoformerCase c({2, 2, length, 2, dim}, type, biases % 2 == 1, biases > 1);
            run(c, {1, isa});
            Comparison comparison;
            c.compare(comparison);
            ASSERT_TRUE(comparison.ok())
                << isa_name(isa) << ", length " << length << ", dim " << dim << ", biases "
                << biases << ": " << comparison.failure();
          }
        }
      }
    }
  }
}

TEST(EvoformerAttn, Every_path_and_number_of_threads_gives_the_same_bits) {
  for (const DType type : {DType::f32, DType::bf16}) {
    EvoformerCase want({2, 3, 131, 2, 40}, type, true, true);
    run(want, {1, CpuIsa::scalar});
    for (const CpuIsa isa : runnable_isas()) {
      for (const int threads : {1, 2, 5}) {
        EvoformerCase got({2, 3, 131, 2, 40}, type, true, true);
        run(got, {threads, isa});
        ASSERT_TRUE(same(got, want)) << isa_name(isa) << ", " << threads << " threads";
      }
    }
  }
}

TEST(EvoformerAttn, A_query_that_sees_no_key_gives_zeros_and_has_no_gradient) {
  for (const CpuIsa isa : runnable_isas()) {
    EvoformerCase c({1, 1, 70, 1, 16}, DType::f32, true, true);
    for (std::int64_t j = 0; j < 70; ++j) c.bias2.set(5 * 70 + j, -INFINITY);
    run(c, {1, isa});
    for (std::int64_t d = 0; d < 16; ++d) {
      EXPECT_EQ(c.out.get(5 * 16 + d), 0.0);
      EXPECT_EQ(c.grad_q.get(5 * 16 + d), 0.0);
    }
    EXPECT_EQ(c.lse.get(5), -INFINITY);
    Comparison comparison;
    c.compare(comparison);
    EXPECT_TRUE(comparison.ok()) << comparison.failure();
  }
}

TEST(EvoformerAttn, Scores_far_above_what_an_exponential_holds_do_not_overflow) {
  for (const CpuIsa isa : runnable_isas()) {
    EvoformerCase c({1, 1, 150, 1, 32}, DType::f32, false, true);
    for (std::int64_t i = 0; i < 150 * 150; ++i) c.bias2.set(i, static_cast<double>(i % 150) * 20);
    run(c, {1, isa});
    Comparison comparison;
    c.compare(comparison);
    EXPECT_TRUE(comparison.ok()) << comparison.failure();
  }
}

TEST(EvoformerAttn, What_is_not_a_number_is_not_hidden) {
  for (const CpuIsa isa : runnable_isas()) {
    EvoformerCase c({1, 1, 20, 1, 16}, DType::f32, false, false);
    c.q.set(3 * 16 + 2, NAN);
    run(c, {1, isa});
    EXPECT_TRUE(std::isnan(c.out.get(3 * 16)));
    EXPECT_TRUE(std::isfinite(c.out.get(4 * 16)));
  }
}

TEST(EvoformerAttn, What_is_wrong_is_refused_and_what_is_empty_is_not) {
  EvoformerCase c({1, 1, 4, 1, 8}, DType::f32, false, false);
  EvoformerProblem bad = c.problem();
  bad.sizes.dim = 7;
  EXPECT_THROW(evoformer_attn(bad, {}), std::invalid_argument);
  bad.sizes.dim = 129;
  EXPECT_THROW(evoformer_attn(bad, {}), std::invalid_argument);
  bad = c.problem();
  bad.q.data = nullptr;
  EXPECT_THROW(evoformer_attn(bad, {}), std::invalid_argument);
  bad.sizes.length = 0;
  evoformer_attn(bad, {});
  bad.sizes.length = -1;
  EXPECT_THROW(evoformer_attn(bad, {}), std::invalid_argument);
  EvoformerGradients none = c.gradients();
  none.delta.data = nullptr;
  EXPECT_THROW(evoformer_attn_backward(c.problem(), none, {}), std::invalid_argument);
}

TEST(EvoformerAttn, Self_test_is_right) {
  char detail[200];
  EXPECT_EQ(ds_self_test_evoformer_attn(nullptr, detail, sizeof detail), DS_SELF_TEST_OK) << detail;
  EXPECT_EQ(ds_self_test_evoformer_attn("tpu", detail, sizeof detail), DS_SELF_TEST_SKIPPED);
}

}  // namespace
}  // namespace ds

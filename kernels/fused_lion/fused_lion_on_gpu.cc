// fused_lion on a device, element by element against its reference.

#include <gtest/gtest.h>

#include "cpu_isa.h"
#include "cuda_optimizer_problem.cuh"
#include "fused_lion.h"
#include "reference.h"

namespace ds {
namespace {

std::vector<FusedLionTensor> list_of(const Problem& problem) {
  std::vector<FusedLionTensor> list;
  for (const auto& t : problem) {
    list.push_back({t->p.at(), t->g.at(), t->m.at(), t->copy.at(), t->size, t->types.param,
                    t->types.grad, t->types.state, t->copy.host.dtype()});
  }
  return list;
}

TEST(FusedLion, Every_type_size_and_offset_is_right) {
  DS_NEEDS_DEVICE();
  const FusedLionOptions options{0.01, 0.85, 0.98, 0.1};
  for (const ProblemTypes& types : all_problem_types()) {
    SCOPED_TRACE(types_name({types.param, types.grad, types.state}));
    const Problem problem = make_problem(types);
    const auto list = list_of(problem);
    fused_lion_step(list.data(), list.size(), options, {4.0, 0.0});
    Comparison comparison;
    std::int64_t open = 0, all = 0;
    for (const auto& t : problem) {
      const Buffer p = t->p.result(), m = t->m.result(), copy = t->copy.result();
      EXPECT_EQ(t->v.result(), t->v.before());
      for (std::int64_t i = 0; i < t->size; ++i, ++all) {
        const FusedLionExpected want =
            fused_lion_reference(t->p.get(i), t->g.get(i), t->m.get(i), options, 0.25);
        open += want.sign_is_open;
        comparison.check("exp_avg", i, m, want.exp_avg);
        if (want.sign_is_open) continue;
        comparison.check("param", i, p, want.param);
        comparison.check("copy", i, copy, want.param);
      }
      ASSERT_TRUE(comparison.ok()) << "size " << t->size << ": " << comparison.failure();
    }
    EXPECT_LT(open * 1000, all);
  }
}

TEST(FusedLion, Where_gradient_and_momentum_are_0_only_decay_moves_and_NaN_is_not_hidden) {
  DS_NEEDS_DEVICE();
  ProblemTensor t({DType::f32, DType::f32, DType::f32}, DType::bf16, 64, 0, 3);
  for (std::int64_t i = 0; i < 64; ++i) {
    t.m.set(i, 0.0);
    t.g.set(i, i == 7 ? NAN : 0.0);
  }
  t.m.upload();
  t.g.upload();
  const FusedLionTensor tensor{t.p.at(), t.g.at(), t.m.at(), nullptr, 64};
  fused_lion_step(&tensor, 1, {0.5, 0.9, 0.99, 0.0});
  const Buffer p = t.p.result();
  for (std::int64_t i = 0; i < 64; ++i) {
    if (i == 7) {
      EXPECT_TRUE(std::isnan(p.get(i)));
    } else {
      EXPECT_EQ(p.get(i), t.p.get(i));
    }
  }
}

TEST(FusedLion, Self_test_is_right) {
  char detail[200];
  const int status = ds_self_test_fused_lion("cuda", detail, sizeof detail);
  EXPECT_EQ(status, have_device() ? DS_SELF_TEST_OK : DS_SELF_TEST_SKIPPED) << detail;
}

}  // namespace
}  // namespace ds

// fused_lamb on a device, element by element against its reference.

#include <gtest/gtest.h>

#include "cpu_isa.h"
#include "cuda_optimizer_problem.cuh"
#include "fused_lamb.h"
#include "reference.h"

namespace ds {
namespace {

std::vector<FusedLambTensor> list_of(const Problem& problem) {
  std::vector<FusedLambTensor> list;
  for (const auto& t : problem) {
    list.push_back({t->p.at(), t->g.at(), t->m.at(), t->v.at(), t->copy.at(), t->size,
                    t->types.param, t->types.grad, t->types.state, t->copy.host.dtype()});
  }
  return list;
}

void expect_step(const Problem& problem, const Buffer& ratios, const FusedLambOptions& options,
                 double multiplier) {
  Comparison comparison;
  for (std::size_t k = 0; k < problem.size(); ++k) {
    const ProblemTensor& t = *problem[k];
    if (t.size == 0) continue;
    const FusedLambExpected want = fused_lamb_reference(t.p.before(), t.g.before(), t.m.before(),
                                                        t.v.before(), t.size, options, multiplier);
    const Buffer p = t.p.result(), m = t.m.result(), v = t.v.result(), copy = t.copy.result();
    // Rounded states give a slightly other direction than float64, and with it another norm.
    const double rounded = t.types.state == DType::f32 ? 1e-6 : 1e-2 / std::sqrt(t.size) + 1e-4;
    ASSERT_NEAR(ratios.get(static_cast<std::int64_t>(k)) / want.trust_ratio, 1.0, rounded);
    for (std::int64_t i = 0; i < t.size; ++i) {
      const auto at = static_cast<std::size_t>(i);
      comparison.check("exp_avg", i, m, want.exp_avg[at]);
      comparison.check("exp_avg_sq", i, v, want.exp_avg_sq[at]);
      comparison.check("param", i, p, want.param[at],
                       lamb_param_slack(t.types.param, t.types.state, want.param[at]));
      comparison.check("copy", i, copy, want.param[at],
                       lamb_param_slack(copy.dtype(), t.types.state, want.param[at]));
    }
    ASSERT_TRUE(comparison.ok()) << "size " << t.size << ": " << comparison.failure();
  }
}

FusedLambOptions some_options() {
  return {7, 0.01, 0.85, 0.98, 1e-6, 0.1, 0.001, 10.0, true};
}

TEST(FusedLamb, Every_type_size_and_offset_is_right) {
  DS_NEEDS_DEVICE();
  for (const ProblemTypes& types : all_problem_types()) {
    SCOPED_TRACE(types_name({types.param, types.grad, types.state}));
    const Problem problem = make_problem(types);
    const DeviceBuffer ratios(Buffer(DType::f32, static_cast<std::int64_t>(problem.size())));
    const auto list = list_of(problem);
    fused_lamb_step(list.data(), list.size(), some_options(), {4.0, 0.0}, {},
                    static_cast<float*>(ratios.data()));
    expect_step(problem, ratios.download(DType::f32, static_cast<std::int64_t>(problem.size())),
                some_options(), 0.25);
  }
}

TEST(FusedLamb, Large_and_small_tensors_in_one_list_are_right_and_repeat_to_the_bit) {
  DS_NEEDS_DEVICE();
  const ProblemTypes types{DType::f32, DType::f32, DType::f32};
  const auto make = [&] {
    Problem problem;
    std::uint64_t seed = 5;
    for (const std::int64_t size : {100, 1500000, 3000, 700000, 700000, 2048, 2049, 400000, 1}) {
      problem.push_back(std::make_unique<ProblemTensor>(types, DType::bf16, size, 0, ++seed));
    }
    return problem;
  };
  const Problem a = make(), b = make();
  const DeviceBuffer ratios(Buffer(DType::f32, 9));
  for (const Problem* problem : {&a, &b}) {
    const auto list = list_of(*problem);
    fused_lamb_step(list.data(), list.size(), some_options(), {}, {},
                    static_cast<float*>(ratios.data()));
  }
  expect_step(a, ratios.download(DType::f32, 9), some_options(), 1.0);
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i]->p.result(), b[i]->p.result());
    EXPECT_EQ(a[i]->m.result(), b[i]->m.result());
    EXPECT_EQ(a[i]->v.result(), b[i]->v.result());
  }
}

TEST(FusedLamb, Eps_inside_the_root_is_right) {
  DS_NEEDS_DEVICE();
  Problem problem;
  problem.push_back(std::make_unique<ProblemTensor>(
      ProblemTypes{DType::f32, DType::f32, DType::f32}, DType::bf16, 5000, 0, 12));
  FusedLambOptions options = some_options();
  options.eps = 0.01;
  options.eps_inside_sqrt = true;
  const DeviceBuffer ratios(Buffer(DType::f32, 1));
  const auto list = list_of(problem);
  fused_lamb_step(list.data(), list.size(), options, {}, {}, static_cast<float*>(ratios.data()));
  expect_step(problem, ratios.download(DType::f32, 1), options, 1.0);
}

TEST(FusedLamb, A_norm_of_0_gives_the_ratio_1) {
  DS_NEEDS_DEVICE();
  for (const std::int64_t size : {100, 5000}) {
    ProblemTensor t({DType::f32, DType::f32, DType::f32}, DType::bf16, size, 0, 3);
    for (std::int64_t i = 0; i < size; ++i) t.p.set(i, 0.0);
    t.p.upload();
    const DeviceBuffer ratio(Buffer(DType::f32, 1));
    const FusedLambTensor tensor{t.p.at(), t.g.at(), t.m.at(), t.v.at(), nullptr, size};
    FusedLambOptions options = some_options();
    options.min_ratio = 0.0;
    fused_lamb_step(&tensor, 1, options, {}, {}, static_cast<float*>(ratio.data()));
    EXPECT_EQ(ratio.download(DType::f32, 1).get(0), 1.0);
    EXPECT_NE(t.p.result(), t.p.before());
  }
}

TEST(FusedLamb, Self_test_is_right) {
  char detail[200];
  const int status = ds_self_test_fused_lamb("cuda", detail, sizeof detail);
  EXPECT_EQ(status, have_device() ? DS_SELF_TEST_OK : DS_SELF_TEST_SKIPPED) << detail;
}

}  // namespace
}  // namespace ds

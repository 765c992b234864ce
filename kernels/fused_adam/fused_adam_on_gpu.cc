// fused_adam on a device, element by element against its reference.

#include <gtest/gtest.h>

#include "cpu_isa.h"
#include "cuda_optimizer_problem.cuh"
#include "fused_adam.h"
#include "reference.h"

namespace ds {
namespace {

std::vector<FusedAdamTensor> list_of(const Problem& problem, bool copies = true) {
  std::vector<FusedAdamTensor> list;
  for (const auto& t : problem) {
    list.push_back({t->p.at(), t->g.at(), t->m.at(), t->v.at(), copies ? t->copy.at() : nullptr,
                    t->size, t->types.param, t->types.grad, t->types.state, t->copy.host.dtype()});
  }
  return list;
}

void expect_step(const Problem& problem, const FusedAdamOptions& options, double multiplier = 1.0) {
  Comparison comparison;
  for (const auto& t : problem) {
    const Buffer p = t->p.result(), m = t->m.result(), v = t->v.result(), copy = t->copy.result();
    for (std::int64_t i = 0; i < t->size; ++i) {
      const FusedAdamExpected want = fused_adam_reference(t->p.get(i), t->g.get(i), t->m.get(i),
                                                          t->v.get(i), options, multiplier);
      comparison.check("param", i, p, want.param);
      comparison.check("exp_avg", i, m, want.exp_avg);
      comparison.check("exp_avg_sq", i, v, want.exp_avg_sq);
      comparison.check("copy", i, copy, want.param);
    }
    ASSERT_TRUE(comparison.ok()) << "size " << t->size << ": " << comparison.failure();
  }
}

FusedAdamOptions some_options(bool adamw = true) {
  return {7, 0.01, 0.85, 0.98, 1e-8, 0.1, adamw, true};
}

TEST(FusedAdam, Every_type_size_and_offset_is_right) {
  DS_NEEDS_DEVICE();
  bool f16_copy = false;
  for (const ProblemTypes& types : all_problem_types()) {
    for (const bool adamw : {true, false}) {
      f16_copy = !f16_copy;
      SCOPED_TRACE(types_name({types.param, types.grad, types.state}));
      const Problem problem = make_problem(types, f16_copy ? DType::f16 : DType::bf16);
      const auto list = list_of(problem);
      fused_adam_step(list.data(), list.size(), some_options(adamw));
      expect_step(problem, some_options(adamw));
    }
  }
}

TEST(FusedAdam, Types_may_differ_within_a_list) {
  DS_NEEDS_DEVICE();
  Problem problem;
  std::uint64_t seed = 9;
  for (const ProblemTypes& types : all_problem_types()) {
    problem.push_back(std::make_unique<ProblemTensor>(types, DType::f16, 3000, 1, ++seed));
  }
  const auto list = list_of(problem);
  fused_adam_step(list.data(), list.size(), some_options());
  expect_step(problem, some_options());
}

TEST(FusedAdam, Numbers_on_the_device_give_what_the_same_ones_of_the_host_give) {
  DS_NEEDS_DEVICE();
  const ProblemTypes types{DType::f32, DType::f16, DType::f32};
  FusedAdamOptions options = some_options();
  struct {
    std::int64_t step = 6;
    float lr = 0.25f, scale = 8.0f, norm = 80.0f, found = 0.0f;
  } numbers;
  Buffer raw(DType::f32, sizeof numbers / 4);
  std::memcpy(raw.data(), &numbers, sizeof numbers);
  const DeviceBuffer on_device(raw);
  auto* base = static_cast<char*>(on_device.data());
  OptimizerScalars scalars;
  scalars.step = reinterpret_cast<std::int64_t*>(base);
  scalars.lr = reinterpret_cast<float*>(base + offsetof(decltype(numbers), lr));
  scalars.grad_scale = reinterpret_cast<float*>(base + offsetof(decltype(numbers), scale));
  scalars.grad_norm = reinterpret_cast<float*>(base + offsetof(decltype(numbers), norm));
  scalars.found_inf = reinterpret_cast<float*>(base + offsetof(decltype(numbers), found));
  const Problem problem = make_problem(types);
  const auto list = list_of(problem);
  FusedAdamOptions unused = options;
  unused.step = 100;
  unused.lr = 77.0;
  fused_adam_step(list.data(), list.size(), unused, {1.0, 5.0}, scalars);
  options.lr = 0.25;
  expect_step(problem, options, grad_multiplier_reference({8.0, 5.0}, 80.0));
  std::int64_t step = 0;
  check_cuda(cudaMemcpy(&step, scalars.step, sizeof step, cudaMemcpyDeviceToHost), "step");
  EXPECT_EQ(step, 7);

  // With an infinity found nothing is written and the step does not count.
  const Problem again = make_problem(types);
  const auto same = list_of(again);
  const float one = 1.0f;
  check_cuda(cudaMemcpy(const_cast<float*>(scalars.found_inf), &one, 4, cudaMemcpyHostToDevice),
             "found_inf");
  fused_adam_step(same.data(), same.size(), unused, {1.0, 5.0}, scalars);
  for (const auto& t : again) {
    EXPECT_EQ(t->p.result(), t->p.before());
    EXPECT_EQ(t->m.result(), t->m.before());
    EXPECT_EQ(t->v.result(), t->v.before());
    EXPECT_EQ(t->copy.result(), t->copy.before());
  }
  check_cuda(cudaMemcpy(&step, scalars.step, sizeof step, cudaMemcpyDeviceToHost), "step");
  EXPECT_EQ(step, 7);
}

TEST(FusedAdam, Two_runs_give_the_same_bits_and_a_list_may_change_between_steps) {
  DS_NEEDS_DEVICE();
  const ProblemTypes types{DType::bf16, DType::bf16, DType::f32};
  const Problem a = make_problem(types), b = make_problem(types);
  auto list_a = list_of(a), list_b = list_of(b);
  for (int step = 1; step <= 20; ++step) {
    FusedAdamOptions options = some_options();
    options.step = step;
    fused_adam_step(list_a.data(), list_a.size(), options);
    // The same tensors in other lists.
    const std::size_t half = static_cast<std::size_t>(step) % list_b.size();
    fused_adam_step(list_b.data(), half, options);
    fused_adam_step(list_b.data() + half, list_b.size() - half, options);
  }
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i]->p.result(), b[i]->p.result());
    EXPECT_EQ(a[i]->m.result(), b[i]->m.result());
    EXPECT_EQ(a[i]->v.result(), b[i]->v.result());
    EXPECT_EQ(a[i]->copy.result(), b[i]->copy.result());
  }
}

TEST(FusedAdam, A_list_without_elements_is_no_work) {
  DS_NEEDS_DEVICE();
  fused_adam_step(nullptr, 0, {});
  const FusedAdamTensor empty{};
  fused_adam_step(&empty, 1, {});
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

TEST(FusedAdam, What_is_wrong_is_refused_before_anything_runs) {
  DS_NEEDS_DEVICE();
  FusedAdamOptions options;
  options.beta2 = 1.0;
  EXPECT_THROW(fused_adam_step(nullptr, 0, options), std::invalid_argument);
  EXPECT_THROW(fused_adam_step(nullptr, 0, {}, {0.0, 0.0}), std::invalid_argument);
  EXPECT_THROW(fused_adam_step(nullptr, 0, {}, {1.0, 1.0}), std::invalid_argument);
  const FusedAdamTensor null{nullptr, nullptr, nullptr, nullptr, nullptr, 4};
  EXPECT_THROW(fused_adam_step(&null, 1, {}), std::invalid_argument);
  EXPECT_THROW(fused_adam_step(nullptr, 0, {}, {}, {}, {1000, nullptr}), std::runtime_error);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

TEST(FusedAdam, Self_test_is_right) {
  char detail[200];
  const int status = ds_self_test_fused_adam("cuda", detail, sizeof detail);
  EXPECT_EQ(status, have_device() ? DS_SELF_TEST_OK : DS_SELF_TEST_SKIPPED) << detail;
  if (status == DS_SELF_TEST_SKIPPED) {
    EXPECT_EQ(std::string(detail).substr(0, 9), "no device");
  }
}

}  // namespace
}  // namespace ds

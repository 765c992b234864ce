#pragma once

// What the CPU code of every fused optimizer must do, element by element against the op's
// reference. Instantiated in <op>_test.cc with a description of the op:
//
//   struct FusedAdamOnCpu {
//     using Options = FusedAdamOptions;
//     using Tensor = FusedAdamTensor;
//     tensor_of, check_step        of its self_test_cases.h
//     step(tensors, count, options, gradients, scalars, ratios, cpu)
//                                  `ratios` is room for a trust ratio a tensor, or nullptr
//     self_test                    ds_self_test_<op>
//   };

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "ds_op.h"
#include "optimizer_case.h"

namespace ds {

inline constexpr OptimizerTypes kMixed{DType::f32, DType::bf16, DType::f32};

template <class Op>
typename Op::Options some_options() {
  typename Op::Options options;
  options.lr = 0.01;
  options.weight_decay = 0.1;
  return options;
}

template <class Op>
void step(std::vector<OptimizerCase>& cases, const CpuOptions& cpu,
          const typename Op::Options& options = some_options<Op>(),
          const GradientOptions& gradients = {}, const OptimizerScalars& scalars = {}) {
  std::vector<typename Op::Tensor> list;
  for (OptimizerCase& c : cases) list.push_back(Op::tensor_of(c, c));
  std::vector<float> ratios(list.size());
  Op::step(list.data(), list.size(), options, gradients, scalars, ratios.data(), cpu);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    cases[i].ratio.set(0, static_cast<double>(ratios[i]));
  }
}

inline void expect_same(const std::vector<OptimizerCase>& a, const std::vector<OptimizerCase>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(a[i].p == b[i].p && a[i].m == b[i].m && a[i].v == b[i].v &&
                a[i].copy == b[i].copy && a[i].ratio == b[i].ratio)
        << "tensor " << i << " of " << a[i].size << " elements, " << types_name(a[i].types);
  }
}

// Sizes around every vector and chunk, of all types, with copies of both.
inline std::vector<OptimizerCase> all_cases() {
  std::vector<OptimizerCase> cases;
  std::uint64_t seed = 1;
  for (const OptimizerTypes& types : all_fused_optimizer_types()) {
    for (std::int64_t size : {0, 1, 15, 16, 17, 31, 32, 33, 255, 1023, 1024, 1025, 3000}) {
      ++seed;
      cases.emplace_back(types, size, 1.0, seed, seed % 2 == 0 ? DType::f16 : DType::bf16);
    }
  }
  return cases;
}

template <class Op>
class FusedOptimizer : public testing::Test {};
TYPED_TEST_SUITE_P(FusedOptimizer);

TYPED_TEST_P(FusedOptimizer, Agrees_with_the_reference_on_every_path_type_and_size) {
  for (const CpuIsa isa : runnable_isas()) {
    std::vector<OptimizerCase> cases = all_cases();
    const std::vector<OptimizerCase> old = cases;
    step<TypeParam>(cases, {1, isa});
    for (std::size_t i = 0; i < cases.size(); ++i) {
      Comparison comparison;
      TypeParam::check_step(comparison, old[i], cases[i], some_options<TypeParam>(), 1.0);
      ASSERT_TRUE(comparison.ok()) << isa_name(isa) << ", " << cases[i].size << " elements, "
                                   << types_name(cases[i].types) << ": " << comparison.failure();
    }
  }
}

TYPED_TEST_P(FusedOptimizer, Every_path_and_any_number_of_threads_give_the_same_bits) {
  std::vector<OptimizerCase> want = all_cases();
  for (std::int64_t size : {100'000, 0, 40'001, 700'003, 1}) want.emplace_back(kMixed, size);
  const std::vector<OptimizerCase> old = want;
  step<TypeParam>(want, {1, CpuIsa::scalar});
  for (const CpuIsa isa : runnable_isas()) {
    for (const int threads : {1, 2, 8}) {
      SCOPED_TRACE(std::string(isa_name(isa)) + ", threads: " + std::to_string(threads));
      std::vector<OptimizerCase> got = old;
      step<TypeParam>(got, {threads, isa});
      expect_same(got, want);
    }
  }
}

TYPED_TEST_P(FusedOptimizer, Random_lists_are_what_their_tensors_are_one_by_one) {
  Random random(11);
  const std::vector<OptimizerTypes> types = all_fused_optimizer_types();
  for (int round = 0; round < 20; ++round) {
    std::vector<OptimizerCase> list;
    const int count = static_cast<int>(8 * std::fabs(random.next()));
    for (int i = 0; i < count; ++i) {
      const double place = std::fabs(random.next()) * static_cast<double>(types.size());
      const double size = std::pow(10.0, 5 * std::fabs(random.next())) - 1;
      list.emplace_back(types[static_cast<std::size_t>(place)], static_cast<std::int64_t>(size),
                        1.0, static_cast<std::uint64_t>(round * 100 + i));
    }
    std::vector<OptimizerCase> want = list;
    for (OptimizerCase& c : want) {
      std::vector<OptimizerCase> one{c};
      step<TypeParam>(one, {1, CpuIsa::automatic});
      c = one[0];
    }
    step<TypeParam>(list, {2, CpuIsa::automatic});
    expect_same(list, want);
  }
}

TYPED_TEST_P(FusedOptimizer, Gradients_are_unscaled_and_clipped_in_the_same_pass) {
  std::vector<OptimizerCase> cases{{kMixed, 1000, 8.0}};
  const std::vector<OptimizerCase> old = cases;
  float norm = 80.0f, scale = 8.0f;
  OptimizerScalars scalars;
  scalars.grad_norm = &norm;
  scalars.grad_scale = &scale;
  step<TypeParam>(cases, {1, CpuIsa::automatic}, some_options<TypeParam>(), {1.0, 2.0}, scalars);
  Comparison comparison;
  TypeParam::check_step(comparison, old[0], cases[0], some_options<TypeParam>(),
                        1.0 / 8.0 * 2.0 / (10.0 + 1e-6));
  EXPECT_TRUE(comparison.ok()) << comparison.failure();
}

TYPED_TEST_P(FusedOptimizer, A_step_with_an_infinity_found_writes_nothing_and_does_not_count) {
  std::vector<OptimizerCase> cases{{kMixed, 1000}};
  const std::vector<OptimizerCase> old = cases;
  float found = 1.0f;
  std::int64_t count = 6;
  OptimizerScalars scalars;
  scalars.found_inf = &found;
  scalars.step = &count;
  step<TypeParam>(cases, {1, CpuIsa::automatic}, some_options<TypeParam>(), {}, scalars);
  expect_same(cases, old);
  EXPECT_EQ(count, 6);
  found = 0.0f;
  step<TypeParam>(cases, {1, CpuIsa::automatic}, some_options<TypeParam>(), {}, scalars);
  EXPECT_EQ(count, 7);
  EXPECT_TRUE(cases[0].p != old[0].p);
}

// Float denormals in the averages, as of a parameter whose gradients have been 0 for long.
TYPED_TEST_P(FusedOptimizer, Denormals_count) {
  std::vector<OptimizerCase> cases{{{DType::f32, DType::f32, DType::f32}, 33}};
  for (std::int64_t i = 0; i < 33; ++i) {
    cases[0].g.set(i, 0.0);
    cases[0].m.set(i, 1e-40);
    cases[0].v.set(i, 4e-41);
  }
  step<TypeParam>(cases, {1, CpuIsa::automatic});
  for (std::int64_t i = 0; i < 33; ++i) {
    EXPECT_GT(cases[0].m.get(i), 0.89e-40);
    EXPECT_LT(cases[0].m.get(i), 1e-40);
  }
}

TYPED_TEST_P(FusedOptimizer, Refuses_before_anything_is_written) {
  std::vector<OptimizerCase> cases{{kMixed, 10}};
  const std::vector<OptimizerCase> old = cases;
  const CpuOptions cpu{1, CpuIsa::automatic};
  typename TypeParam::Options bad = some_options<TypeParam>();
  bad.beta1 = 1.0;
  std::int64_t count = 3;
  OptimizerScalars scalars;
  scalars.step = &count;
  EXPECT_THROW(step<TypeParam>(cases, cpu, bad, {}, scalars), std::invalid_argument);
  EXPECT_THROW(step<TypeParam>(cases, cpu, some_options<TypeParam>(), {0.0, 0.0}, scalars),
               std::invalid_argument);
  EXPECT_THROW(step<TypeParam>(cases, cpu, some_options<TypeParam>(), {1.0, 1.0}, scalars),
               std::invalid_argument);
  typename TypeParam::Tensor tensor = TypeParam::tensor_of(cases[0], cases[0]);
  tensor.copy = tensor.param;
  EXPECT_THROW(TypeParam::step(&tensor, 1, some_options<TypeParam>(), {}, scalars, nullptr, cpu),
               std::invalid_argument);
  expect_same(cases, old);
  EXPECT_EQ(count, 3);
}

TYPED_TEST_P(FusedOptimizer, Self_test_is_right_and_says_on_what) {
  char detail[200] = "";
  EXPECT_EQ(TypeParam::self_test("cpu", detail, sizeof detail), DS_SELF_TEST_OK) << detail;
  EXPECT_NE(std::string(detail).find("scalar"), std::string::npos) << detail;
}

REGISTER_TYPED_TEST_SUITE_P(FusedOptimizer, Agrees_with_the_reference_on_every_path_type_and_size,
                            Every_path_and_any_number_of_threads_give_the_same_bits,
                            Random_lists_are_what_their_tensors_are_one_by_one,
                            Gradients_are_unscaled_and_clipped_in_the_same_pass,
                            A_step_with_an_infinity_found_writes_nothing_and_does_not_count,
                            Denormals_count, Refuses_before_anything_is_written,
                            Self_test_is_right_and_says_on_what);

}  // namespace ds

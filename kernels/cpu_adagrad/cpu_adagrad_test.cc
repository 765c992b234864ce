#include "cpu_adagrad.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "reference.h"
#include "repeated_memory.h"
#include "self_test.h"

namespace ds {
namespace {

constexpr CpuOptions kOneThread{1, CpuIsa::automatic};
constexpr OptimizerTypes kF32{DType::f32, DType::f32, DType::f32};

struct Problem {
  Problem(const OptimizerTypes& types, std::int64_t n, std::uint64_t seed = 1)
      : p(types.param, n), g(types.grad, n), v(types.state, n), size(n) {
    Random random(seed);
    for (std::int64_t i = 0; i < n; ++i) {
      p.set(i, random.next());
      g.set(i, i % 13 == 5 ? 0.0 : random.next());
      v.set(i, i % 7 == 3 ? 0.0 : std::fabs(random.next()));
    }
  }
  AdagradTensor tensor() {
    return {p.data(), g.data(), v.data(), size, p.dtype(), g.dtype(), v.dtype()};
  }
  Buffer p, g, v;
  std::int64_t size;
};

bool same(const Problem& a, const Problem& b) {
  return a.p == b.p && a.v == b.v;
}

// The gradient is compared, too: a tail that computes in it would hand the next reader other
// numbers.
TEST(CpuAdagrad, Agrees_with_the_reference_element_by_element_and_leaves_the_gradient_alone) {
  for (CpuIsa isa : runnable_isas()) {
    for (const OptimizerTypes& types : all_optimizer_types()) {
      for (std::int64_t size : {0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 255, 1024, 1025, 20'011}) {
        for (const double decay : {0.0, 0.1}) {
          Problem problem(types, size);
          const Problem before = problem;
          AdagradOptions options;
          options.lr = 0.1;
          options.weight_decay = decay;
          const AdagradTensor tensor = problem.tensor();
          cpu_adagrad_step(&tensor, 1, options, {1, isa});
          Comparison comparison;
          for (std::int64_t i = 0; i < size; ++i) {
            const AdagradExpected want =
                adagrad_reference(before.p.get(i), before.g.get(i), before.v.get(i), options);
            comparison.check("param", i, problem.p, want.param);
            comparison.check("exp_avg_sq", i, problem.v, want.exp_avg_sq);
          }
          ASSERT_TRUE(comparison.ok()) << isa_name(isa) << ", " << types_name(types) << ", size "
                                       << size << ": " << comparison.failure();
          ASSERT_TRUE(problem.p.guard_is_intact() && problem.v.guard_is_intact());
          ASSERT_EQ(problem.g, before.g) << "the gradient was written";
        }
      }
    }
  }
}

TEST(CpuAdagrad, Weight_decay_is_in_the_numerator_and_alone_shrinks_a_parameter) {
  float p[1] = {2.0f}, g[1] = {0.0f}, v[1] = {0.0f};
  const AdagradTensor tensor{p, g, v, 1};
  AdagradOptions options;
  options.lr = 0.5;
  options.weight_decay = 0.25;
  cpu_adagrad_step(&tensor, 1, options);
  EXPECT_FLOAT_EQ(p[0], 1.5f);  // g = 0.5 and √v = 0.5: a whole learning rate.
  EXPECT_FLOAT_EQ(v[0], 0.25f);
}

TEST(CpuAdagrad, Every_path_and_number_of_threads_gives_the_same_bits) {
  for (const OptimizerTypes& types : all_optimizer_types()) {
    Problem want(types, 40'003);
    const AdagradTensor first = want.tensor();
    AdagradOptions options;
    options.weight_decay = 0.01;
    cpu_adagrad_step(&first, 1, options, {1, CpuIsa::scalar});
    for (CpuIsa isa : runnable_isas()) {
      for (int threads : {1, 2, 5}) {
        Problem problem(types, 40'003);
        const AdagradTensor tensor = problem.tensor();
        cpu_adagrad_step(&tensor, 1, options, {threads, isa});
        ASSERT_TRUE(same(problem, want)) << isa_name(isa) << ", " << types_name(types);
      }
    }
  }
}

TEST(CpuAdagrad, Many_steps_stay_with_the_reference) {
  float p[1] = {1.0f}, g[1] = {0.3f}, v[1] = {};
  const AdagradTensor tensor{p, g, v, 1};
  AdagradOptions options;
  options.weight_decay = 0.01;
  double want_p = 1.0, want_v = 0.0;
  for (int step = 0; step < 500; ++step) {
    cpu_adagrad_step(&tensor, 1, options);
    const AdagradExpected want = adagrad_reference(want_p, g[0], want_v, options);
    want_p = want.param.value;
    want_v = want.exp_avg_sq.value;
  }
  EXPECT_NEAR(p[0], want_p, 500 * 0x1p-25);
  EXPECT_NEAR(v[0] / want_v, 1.0, 500 * 0x1p-25);
}

TEST(CpuAdagrad, A_gradient_that_is_not_finite_shows_in_the_parameter) {
  for (CpuIsa isa : runnable_isas()) {
    Problem problem(kF32, 40);
    problem.g.set(39, NAN);
    const AdagradTensor tensor = problem.tensor();
    cpu_adagrad_step(&tensor, 1, {}, {1, isa});
    EXPECT_TRUE(std::isnan(problem.p.get(39)));
    EXPECT_TRUE(std::isfinite(problem.p.get(38)));
  }
}

TEST(CpuAdagrad, Empty_tensors_anywhere_in_the_list_change_nothing) {
  cpu_adagrad_step(nullptr, 0, {});
  Problem want(kF32, 100), problem(kF32, 100);
  const AdagradTensor only = want.tensor();
  cpu_adagrad_step(&only, 1, {});
  const AdagradTensor empty{nullptr, nullptr, nullptr, 0};
  const std::vector<AdagradTensor> list = {empty, problem.tensor(), empty};
  cpu_adagrad_step(list.data(), list.size(), {});
  EXPECT_TRUE(same(problem, want));
}

TEST(CpuAdagrad, Options_out_of_range_and_shared_memory_are_refused_before_anything_is_written) {
  Problem problem(kF32, 10);
  const Problem before = problem;
  const std::vector<AdagradTensor> list = {problem.tensor(), problem.tensor()};
  EXPECT_THROW(cpu_adagrad_step(list.data(), 2, {}), std::invalid_argument);
  for (const AdagradOptions& bad :
       {AdagradOptions{NAN}, AdagradOptions{1e-2, -1.0}, AdagradOptions{1e-2, 1e-10, INFINITY}}) {
    EXPECT_THROW(cpu_adagrad_step(list.data(), 1, bad), std::invalid_argument);
  }
  EXPECT_TRUE(same(problem, before));
}

TEST(CpuAdagradLarge, More_than_two_to_the_31_elements_are_all_updated_once) {
  constexpr std::int64_t kWindow = 1 << 21, kRepetitions = 1024, kTail = 17;
  constexpr std::int64_t kSize = kWindow * kRepetitions + kTail;
  static_assert(kSize > std::int64_t{1} << 31);
  RepeatedMemory p(kWindow * 2, kRepetitions, kTail * 2), g(kWindow * 2, kRepetitions, kTail * 2),
      v(kWindow * 2, kRepetitions, kTail * 2);
  const auto fill = [](f16* ps, f16* gs, f16* vs, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
      from_float(0.0f, ps[i]);
      from_float(static_cast<float>(i % 3) - 1.0f, gs[i]);
      from_float(0.0f, vs[i]);
    }
  };
  fill(p.window<f16>(), g.window<f16>(), v.window<f16>(), kWindow);
  fill(p.tail<f16>(), g.tail<f16>(), v.tail<f16>(), kTail);
  const AdagradTensor large{p.data(),   g.data(),   v.data(),  kSize,
                            DType::f16, DType::f16, DType::f16};
  cpu_adagrad_step(&large, 1, {}, kOneThread);
  // v counts the steps of those that have a gradient, exactly as far as f16 can count.
  for (std::int64_t i = 0; i < kTail; ++i) {
    ASSERT_EQ(to_float(v.tail<f16>()[i]), i % 3 == 1 ? 0.0f : 1.0f) << i;
  }
  for (std::int64_t i = 0; i < kWindow; ++i) {
    ASSERT_EQ(to_float(v.window<f16>()[i]), i % 3 == 1 ? 0.0f : 1024.0f) << i;
  }
}

}  // namespace
}  // namespace ds

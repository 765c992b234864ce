#include "cpu_lion.h"

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
      : p(types.param, n), g(types.grad, n), m(types.state, n), size(n) {
    Random random(seed);
    for (std::int64_t i = 0; i < n; ++i) {
      p.set(i, random.next());
      g.set(i, i % 13 == 5 ? 0.0 : random.next());
      m.set(i, i % 26 == 5 ? 0.0 : random.next());
    }
  }
  LionTensor tensor() {
    return {p.data(), g.data(), m.data(), size, p.dtype(), g.dtype(), m.dtype()};
  }
  Buffer p, g, m;
  std::int64_t size;
};

bool same(const Problem& a, const Problem& b) {
  return a.p == b.p && a.m == b.m;
}

TEST(CpuLion, Agrees_with_the_reference_element_by_element_on_every_path_type_and_size) {
  for (CpuIsa isa : runnable_isas()) {
    for (const OptimizerTypes& types : all_optimizer_types()) {
      for (std::int64_t size : {0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 255, 1024, 1025, 20'011}) {
        for (const double decay : {0.0, 0.1}) {
          Problem problem(types, size);
          const Problem before = problem;
          LionOptions options;
          options.lr = 0.01;
          options.weight_decay = decay;
          const LionTensor tensor = problem.tensor();
          cpu_lion_step(&tensor, 1, options, {1, isa});
          Comparison params, states;
          std::int64_t open = 0;
          for (std::int64_t i = 0; i < size; ++i) {
            const LionExpected want =
                lion_reference(before.p.get(i), before.g.get(i), before.m.get(i), options);
            open += want.sign_is_open;
            if (!want.sign_is_open) params.check("param", i, problem.p, want.param);
            states.check("exp_avg", i, problem.m, want.exp_avg);
          }
          const auto where = [&] {
            return std::string(isa_name(isa)) + ", " + types_name(types) + ", size " +
                   std::to_string(size) + ": ";
          };
          ASSERT_TRUE(params.ok()) << where() << params.failure();
          ASSERT_TRUE(states.ok()) << where() << states.failure();
          // lr, its sum with the decay and the difference: three roundings of half an ulp.
          ASSERT_LE(params.worst_ulp(), 1.5) << where();
          ASSERT_LE(open, 1 + size / 1000) << "hardly any sign may be left out";
          ASSERT_TRUE(problem.p.guard_is_intact() && problem.m.guard_is_intact());
          ASSERT_EQ(problem.g, before.g) << "the gradient was written";
        }
      }
    }
  }
}

// A vectorised Lion whose updates come out near zero passes a test of norms.
TEST(CpuLion, Every_parameter_with_a_direction_moves_by_exactly_the_learning_rate) {
  for (CpuIsa isa : runnable_isas()) {
    std::vector<float> p(999, 0.0f), g(999), m(999, 0.0f);
    Random random(5);
    for (float& x : g) x = static_cast<float>(random.next());
    const LionTensor tensor{p.data(), g.data(), m.data(), 999};
    LionOptions options;
    options.lr = 0.125;
    cpu_lion_step(&tensor, 1, options, {1, isa});
    for (std::size_t i = 0; i < p.size(); ++i) {
      ASSERT_EQ(p[i], g[i] > 0 ? -0.125f : 0.125f) << isa_name(isa) << " " << i;
    }
  }
}

TEST(CpuLion, Sign_of_zero_is_zero_so_that_an_unused_row_stays_put) {
  for (CpuIsa isa : runnable_isas()) {
    std::vector<float> p(37, 1.0f), g(37, 0.0f), m(37, 0.0f);
    g[3] = -0.0f;
    m[5] = -0.0f;
    const LionTensor tensor{p.data(), g.data(), m.data(), 37};
    cpu_lion_step(&tensor, 1, {}, {1, isa});
    for (float x : p) ASSERT_EQ(x, 1.0f) << isa_name(isa);
  }
}

TEST(CpuLion, A_NaN_is_not_hidden_by_the_sign) {
  for (CpuIsa isa : runnable_isas()) {
    Problem problem(kF32, 40);
    problem.g.set(3, NAN);
    problem.g.set(39, NAN);
    const LionTensor tensor = problem.tensor();
    cpu_lion_step(&tensor, 1, {}, {1, isa});
    EXPECT_TRUE(std::isnan(problem.p.get(3)));
    EXPECT_TRUE(std::isnan(problem.p.get(39)));
    EXPECT_TRUE(std::isfinite(problem.p.get(4)));
  }
}

TEST(CpuLion, A_negative_learning_rate_climbs) {
  float p[1] = {1.0f}, g[1] = {2.0f}, m[1] = {};
  const LionTensor tensor{p, g, m, 1};
  LionOptions options;
  options.lr = -0.5;
  cpu_lion_step(&tensor, 1, options);
  EXPECT_EQ(p[0], 1.5f);
}

TEST(CpuLion, Every_path_and_number_of_threads_gives_the_same_bits) {
  for (const OptimizerTypes& types : all_optimizer_types()) {
    Problem want(types, 40'003);
    const LionTensor first = want.tensor();
    LionOptions options;
    options.weight_decay = 0.01;
    cpu_lion_step(&first, 1, options, {1, CpuIsa::scalar});
    for (CpuIsa isa : runnable_isas()) {
      for (int threads : {1, 2, 5}) {
        Problem problem(types, 40'003);
        const LionTensor tensor = problem.tensor();
        cpu_lion_step(&tensor, 1, options, {threads, isa});
        ASSERT_TRUE(same(problem, want)) << isa_name(isa) << ", " << types_name(types);
      }
    }
  }
}

TEST(CpuLion, Hyperparameters_do_not_drift_over_1000_steps) {
  float p[1] = {0.0f}, g[1] = {0.7f}, m[1] = {};
  const LionTensor tensor{p, g, m, 1};
  LionOptions options;
  options.beta2 = 0.999;
  double want = 0.0;
  for (int step = 0; step < 1000; ++step) {
    cpu_lion_step(&tensor, 1, options);
    want = 0.999 * want + (1 - 0.999) * static_cast<double>(g[0]);
  }
  EXPECT_NEAR(m[0] / want, 1.0, 5e-6);
}

TEST(CpuLion, Empty_tensors_anywhere_in_the_list_change_nothing) {
  cpu_lion_step(nullptr, 0, {});
  Problem want(kF32, 100), problem(kF32, 100);
  const LionTensor only = want.tensor();
  cpu_lion_step(&only, 1, {});
  const LionTensor empty{nullptr, nullptr, nullptr, 0};
  const std::vector<LionTensor> list = {empty, problem.tensor(), empty};
  cpu_lion_step(list.data(), list.size(), {});
  EXPECT_TRUE(same(problem, want));
}

TEST(CpuLion, Options_out_of_range_and_shared_memory_are_refused_before_anything_is_written) {
  Problem problem(kF32, 10);
  const Problem before = problem;
  const std::vector<LionTensor> list = {problem.tensor(), problem.tensor()};
  EXPECT_THROW(cpu_lion_step(list.data(), 2, {}), std::invalid_argument);
  for (const LionOptions& bad : {LionOptions{NAN}, LionOptions{1e-4, 1.0}, LionOptions{1e-4, -0.1},
                                 LionOptions{1e-4, 0.9, 1.0}, LionOptions{1e-4, 0.9, 0.99, NAN}}) {
    EXPECT_THROW(cpu_lion_step(list.data(), 1, bad), std::invalid_argument);
  }
  EXPECT_TRUE(same(problem, before));
}

TEST(CpuLionLarge, More_than_two_to_the_31_elements_are_all_updated_once) {
  constexpr std::int64_t kWindow = 1 << 21, kRepetitions = 1024, kTail = 17;
  constexpr std::int64_t kSize = kWindow * kRepetitions + kTail;
  static_assert(kSize > std::int64_t{1} << 31);
  RepeatedMemory p(kWindow * 2, kRepetitions, kTail * 2), g(kWindow * 2, kRepetitions, kTail * 2),
      m(kWindow * 2, kRepetitions, kTail * 2);
  const auto fill = [](f16* ps, f16* gs, f16* ms, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
      from_float(0.0f, ps[i]);
      from_float(static_cast<float>(i % 3) - 1.0f, gs[i]);
      from_float(0.0f, ms[i]);
    }
  };
  fill(p.window<f16>(), g.window<f16>(), m.window<f16>(), kWindow);
  fill(p.tail<f16>(), g.tail<f16>(), m.tail<f16>(), kTail);
  const LionTensor large{p.data(), g.data(), m.data(), kSize, DType::f16, DType::f16, DType::f16};
  LionOptions options;
  options.lr = 0x1p-6;  // 1,024 steps of it are exact in f16, so that every step counts.
  cpu_lion_step(&large, 1, options, kOneThread);
  const auto expect = [](const f16* got, std::int64_t n, float steps) {
    for (std::int64_t i = 0; i < n; ++i) {
      ASSERT_EQ(to_float(got[i]), (1.0f - static_cast<float>(i % 3)) * steps * 0x1p-6f) << i;
    }
  };
  expect(p.tail<f16>(), kTail, 1);
  expect(p.window<f16>(), kWindow, kRepetitions);
}

}  // namespace
}  // namespace ds

#include "cpu_adam.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "reference.h"
#include "repeated_memory.h"
#include "self_test.h"

namespace ds {
namespace {

constexpr CpuOptions kOneThread{1, CpuIsa::automatic};

// A parameter with its gradient and state.
struct Problem {
  Problem(const OptimizerTypes& types, std::int64_t n, std::uint64_t seed = 1)
      : p(types.param, n), g(types.grad, n), m(types.state, n), v(types.state, n), size(n) {
    Random random(seed);
    for (std::int64_t i = 0; i < n; ++i) {
      p.set(i, random.next());
      g.set(i, i % 13 == 5 ? 0.0 : random.next());
      m.set(i, 0.1 * random.next());
      v.set(i, 0.01 * std::fabs(random.next()));
    }
  }

  AdamTensor tensor() {
    return {p.data(), g.data(), m.data(), v.data(), size, p.dtype(), g.dtype(), m.dtype()};
  }

  Buffer p, g, m, v;
  std::int64_t size;
};

bool same(const Problem& a, const Problem& b) {
  return a.p == b.p && a.m == b.m && a.v == b.v;
}

constexpr OptimizerTypes kF32{DType::f32, DType::f32, DType::f32};

std::vector<std::int64_t> sizes() {
  return {0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 255, 1024, 1025, 20'011};
}

TEST(CpuAdam, Agrees_with_the_reference_element_by_element_on_every_path_type_and_size) {
  for (CpuIsa isa : runnable_isas()) {
    for (const OptimizerTypes& types : all_optimizer_types()) {
      for (std::int64_t size : sizes()) {
        for (int mode = 0; mode < 4; ++mode) {
          Problem problem(types, size);
          const Problem before = problem;
          AdamOptions options;
          options.step = 1 + mode * 100;
          options.weight_decay = mode == 0 ? 0.0 : 0.1;
          options.adamw = mode != 2;
          options.bias_correction = mode != 3;
          const AdamTensor tensor = problem.tensor();
          cpu_adam_step(&tensor, 1, options, {1, isa});
          Comparison comparison;
          for (std::int64_t i = 0; i < size; ++i) {
            const AdamExpected want = adam_reference(before.p.get(i), before.g.get(i),
                                                     before.m.get(i), before.v.get(i), options);
            comparison.check("param", i, problem.p, want.param);
            comparison.check("exp_avg", i, problem.m, want.exp_avg);
            comparison.check("exp_avg_sq", i, problem.v, want.exp_avg_sq);
          }
          ASSERT_TRUE(comparison.ok()) << isa_name(isa) << ", " << types_name(types) << ", size "
                                       << size << ": " << comparison.failure();
          ASSERT_TRUE(problem.p.guard_is_intact() && problem.m.guard_is_intact() &&
                      problem.v.guard_is_intact());
          ASSERT_EQ(problem.g, before.g) << "the gradient was written";
        }
      }
    }
  }
}

TEST(CpuAdam, Every_path_gives_the_same_bits) {
  for (const OptimizerTypes& types : all_optimizer_types()) {
    Problem first(types, 1003);
    for (CpuIsa isa : runnable_isas()) {
      Problem problem(types, 1003);
      const AdamTensor tensor = problem.tensor();
      for (int step = 1; step <= 3; ++step) {
        AdamOptions options;
        options.step = step;
        options.weight_decay = 0.01;
        cpu_adam_step(&tensor, 1, options, {1, isa});
      }
      if (isa == CpuIsa::scalar) {
        first = problem;
      } else {
        ASSERT_TRUE(same(problem, first)) << isa_name(isa) << ", " << types_name(types);
      }
    }
  }
}

TEST(CpuAdam, The_number_of_threads_does_not_change_a_bit) {
  std::vector<Problem> want;
  for (int threads : {1, 2, 3, 8, 0}) {
    std::vector<Problem> problems;
    for (std::int64_t size : {100'003, 0, 1, 50'000, 17}) problems.emplace_back(kF32, size);
    std::vector<AdamTensor> list;
    for (Problem& problem : problems) list.push_back(problem.tensor());
    cpu_adam_step(list.data(), list.size(), {}, {threads, CpuIsa::automatic});
    if (want.empty()) {
      want = problems;
    } else {
      for (std::size_t i = 0; i < want.size(); ++i) {
        ASSERT_TRUE(same(problems[i], want[i])) << threads << " threads, tensor " << i;
      }
    }
  }
}

TEST(CpuAdam, A_list_gives_what_its_tensors_give_one_by_one_whatever_their_types) {
  std::vector<Problem> together, alone;
  for (const OptimizerTypes& types : all_optimizer_types()) {
    together.emplace_back(types, 333);
    alone.emplace_back(types, 333);
  }
  std::vector<AdamTensor> list;
  for (Problem& problem : together) list.push_back(problem.tensor());
  cpu_adam_step(list.data(), list.size(), {});
  for (std::size_t i = 0; i < alone.size(); ++i) {
    const AdamTensor tensor = alone[i].tensor();
    cpu_adam_step(&tensor, 1, {});
    EXPECT_TRUE(same(alone[i], together[i])) << i;
  }
}

TEST(CpuAdam, Empty_tensors_anywhere_in_the_list_change_nothing) {
  cpu_adam_step(nullptr, 0, {});
  Problem want(kF32, 100), problem(kF32, 100);
  const AdamTensor only = want.tensor();
  cpu_adam_step(&only, 1, {});
  const AdamTensor empty{nullptr, nullptr, nullptr, nullptr, 0};
  const std::vector<AdamTensor> list = {empty, problem.tensor(), empty, empty};
  cpu_adam_step(list.data(), list.size(), {});
  EXPECT_TRUE(same(problem, want));
  cpu_adam_step(&empty, 1, {});
}

// Float hyperparameters are off by 4e-5 after 200 steps: 1 - 0.999f is not 0.001f.
TEST(CpuAdam, Hyperparameters_do_not_drift_over_200_steps) {
  constexpr std::int64_t kSize = 64;
  Problem problem(kF32, kSize);
  std::vector<double> p(kSize), m(kSize, 0.0), v(kSize, 0.0), g(kSize);
  for (std::int64_t i = 0; i < kSize; ++i) {
    problem.m.set(i, 0.0);
    problem.v.set(i, 0.0);
    p[static_cast<std::size_t>(i)] = problem.p.get(i);
    // Never zero and always of one sign: then m and v converge, and only the rates can be wrong.
    problem.g.set(i, 0.5 + static_cast<double>(i) / kSize);
    g[static_cast<std::size_t>(i)] = problem.g.get(i);
  }
  const AdamTensor tensor = problem.tensor();
  for (int step = 1; step <= 200; ++step) {
    AdamOptions options;
    options.step = step;
    options.weight_decay = 0.01;
    cpu_adam_step(&tensor, 1, options);
    for (std::size_t i = 0; i < p.size(); ++i) {
      const AdamExpected want = adam_reference(p[i], g[i], m[i], v[i], options);
      p[i] = want.param.value;
      m[i] = want.exp_avg.value;
      v[i] = want.exp_avg_sq.value;
    }
  }
  for (std::size_t i = 0; i < p.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    EXPECT_NEAR(problem.m.get(at) / m[i], 1.0, 2e-6);
    EXPECT_NEAR(problem.v.get(at) / v[i], 1.0, 5e-6);
    EXPECT_NEAR(problem.p.get(at), p[i], 200 * 1.2e-7) << i;  // A rounding of p a step.
  }
}

// One group's step must not leak into another's: nothing is remembered between calls.
TEST(CpuAdam, Groups_at_different_steps_do_not_disturb_each_other) {
  Problem a(kF32, 50, 1), b(kF32, 50, 2), b_alone(kF32, 50, 2);
  AdamOptions early, late;
  early.step = 1;
  late.step = 1000;
  const AdamTensor ta = a.tensor(), tb = b.tensor(), tb_alone = b_alone.tensor();
  cpu_adam_step(&ta, 1, late);
  cpu_adam_step(&tb, 1, early);
  cpu_adam_step(&ta, 1, late);
  cpu_adam_step(&tb_alone, 1, early);
  EXPECT_TRUE(same(b, b_alone));
}

TEST(CpuAdam, A_resumed_run_gives_the_bits_of_one_that_was_never_stopped) {
  Problem whole(kF32, 77);
  const AdamTensor tensor = whole.tensor();
  AdamOptions options;
  for (options.step = 1; options.step <= 5; ++options.step) cpu_adam_step(&tensor, 1, options);
  Problem resumed = whole;  // As from a checkpoint, at other addresses.
  for (options.step = 6; options.step <= 10; ++options.step) cpu_adam_step(&tensor, 1, options);
  const AdamTensor copy = resumed.tensor();
  for (options.step = 6; options.step <= 10; ++options.step) cpu_adam_step(&copy, 1, options);
  EXPECT_TRUE(same(whole, resumed));
}

TEST(CpuAdam, The_first_step_moves_each_parameter_by_the_learning_rate) {
  float p[2] = {1.0f, 1.0f}, g[2] = {1e-3f, -1e3f}, m[2] = {}, v[2] = {};
  const AdamTensor tensor{p, g, m, v, 2};
  AdamOptions options;
  options.lr = 0.25;
  cpu_adam_step(&tensor, 1, options);
  EXPECT_NEAR(p[0], 0.75, 1e-5);
  EXPECT_NEAR(p[1], 1.25, 1e-6);
}

TEST(CpuAdam, A_beta_of_zero_takes_the_new_value_exactly) {
  float p[1] = {1.0f}, g[1] = {3.0f}, m[1] = {1e10f}, v[1] = {1e20f};
  const AdamTensor tensor{p, g, m, v, 1};
  AdamOptions options;
  options.beta1 = 0.0;
  options.beta2 = 0.0;
  cpu_adam_step(&tensor, 1, options);
  EXPECT_EQ(m[0], 3.0f);
  EXPECT_EQ(v[0], 9.0f);
}

// p·(1 - lr·wd) in float would be off by a part in 300 of the decay.
TEST(CpuAdam, A_small_decay_is_not_lost_in_rounding) {
  float p[1] = {1.0f}, g[1] = {0.0f}, m[1] = {}, v[1] = {};
  const AdamTensor tensor{p, g, m, v, 1};
  AdamOptions options;
  options.lr = 1e-3;
  options.weight_decay = 0.01;
  double want = 1.0;
  for (options.step = 1; options.step <= 1000; ++options.step) {
    cpu_adam_step(&tensor, 1, options);
    want -= want * 1e-5;
  }
  EXPECT_NEAR(p[0], want, 1000 * 0.5 * 0x1p-24 + 1e-6);
}

TEST(CpuAdam, A_gradient_that_is_not_finite_shows_in_the_parameter) {
  for (CpuIsa isa : runnable_isas()) {
    Problem problem(kF32, 40);
    problem.g.set(3, NAN);
    problem.g.set(39, INFINITY);
    const AdamTensor tensor = problem.tensor();
    cpu_adam_step(&tensor, 1, {}, {1, isa});
    EXPECT_TRUE(std::isnan(problem.p.get(3)));
    EXPECT_FALSE(std::isfinite(problem.m.get(39)));
    EXPECT_TRUE(std::isfinite(problem.p.get(4)));
  }
}

TEST(CpuAdam, Bf16_at_every_alignment_of_two_bytes_neither_crashes_nor_strays) {
  const OptimizerTypes types{DType::bf16, DType::bf16, DType::bf16};
  for (CpuIsa isa : runnable_isas()) {
    for (std::int64_t offset = 0; offset < 8; ++offset) {
      Problem problem(types, 64);
      for (std::int64_t i = 0; i < 64; ++i) {  // So that a step shows in every v.
        problem.g.set(i, 1.0);
        problem.v.set(i, 0.0);
      }
      const Problem before = problem;
      AdamTensor tensor = problem.tensor();
      const auto shift = [&](void* data) { return static_cast<bf16*>(data) + offset; };
      tensor.param = shift(tensor.param);
      tensor.grad = static_cast<const bf16*>(tensor.grad) + offset;
      tensor.exp_avg = shift(tensor.exp_avg);
      tensor.exp_avg_sq = shift(tensor.exp_avg_sq);
      tensor.size = 37;
      cpu_adam_step(&tensor, 1, {}, {1, isa});
      for (std::int64_t i = 0; i < 64; ++i) {
        if (i < offset || i >= offset + 37) {
          ASSERT_EQ(problem.p.get(i), before.p.get(i)) << offset << " " << i;
          ASSERT_EQ(problem.v.get(i), before.v.get(i)) << offset << " " << i;
        } else {
          ASSERT_NE(problem.v.get(i), before.v.get(i)) << offset << " " << i;
        }
      }
    }
  }
}

TEST(CpuAdamRollback, Agrees_with_the_reference_on_every_path_and_type) {
  for (CpuIsa isa : runnable_isas()) {
    for (const OptimizerTypes& types : all_optimizer_types()) {
      for (const bool adamw : {true, false}) {
        Problem problem(types, 1025);
        // A state that a step can leave behind: v at least what the gradient put in.
        for (std::int64_t i = 0; i < problem.size; ++i) {
          problem.v.set(i, 0.01 + problem.v.get(i));
        }
        const Problem before = problem;
        AdamOptions options;
        options.step = 4;
        options.lr = 0.01;
        options.weight_decay = 0.1;
        options.adamw = adamw;
        const AdamTensor tensor = problem.tensor();
        cpu_adam_rollback(&tensor, 1, options, {1, isa});
        Comparison comparison;
        for (std::int64_t i = 0; i < problem.size; ++i) {
          const AdamExpected want = adam_rollback_reference(
              before.p.get(i), before.g.get(i), before.m.get(i), before.v.get(i), options);
          comparison.check("param", i, problem.p, want.param);
          comparison.check("exp_avg", i, problem.m, want.exp_avg);
          comparison.check("exp_avg_sq", i, problem.v, want.exp_avg_sq);
        }
        ASSERT_TRUE(comparison.ok())
            << isa_name(isa) << ", " << types_name(types) << ": " << comparison.failure();
      }
    }
  }
}

// The stated tolerance: a few ulp of the largest term, over beta, for float; an ulp of the type for
// 16 bits, which the step itself may have lost.
TEST(CpuAdamRollback, Undoes_a_step_of_Adam_and_of_AdamW) {
  for (const OptimizerTypes& types : all_optimizer_types()) {
    for (const bool adamw : {true, false}) {
      Problem problem(types, 1025);
      const Problem before = problem;
      AdamOptions options;
      options.step = 7;
      options.lr = 0.01;
      options.weight_decay = 0.1;
      options.adamw = adamw;
      const AdamTensor tensor = problem.tensor();
      cpu_adam_step(&tensor, 1, options);
      ASSERT_FALSE(same(problem, before));
      cpu_adam_rollback(&tensor, 1, options);
      for (std::int64_t i = 0; i < problem.size; ++i) {
        const double p = before.p.get(i), m = before.m.get(i), v = before.v.get(i);
        const double g = std::fabs(before.g.get(i)) + 0.1;
        const double lost = types.param == DType::f32 ? 4 : 1.01;
        // A 16-bit state moves the change that is taken back, too; it is at most a few lr.
        const double blur = types.state == DType::f32 ? 0.0 : 0.02;
        ASSERT_NEAR(problem.p.get(i), p, lost * ulp_at(types.param, std::fabs(p) + 0.1) + blur)
            << types_name(types) << " " << i;
        const double state_ulps = types.state == DType::f32 ? 4 : 1.2;
        // The gradient of L2 has a decay of the parameter, which is known to its own precision.
        const double l2 = adamw ? 0.0 : 0.1 * (lost * ulp_at(types.param, 1.1) + blur);
        ASSERT_NEAR(problem.m.get(i), m,
                    state_ulps * ulp_at(types.state, std::fabs(m) + 0.1 * g) / 0.9 + l2 * 0.2)
            << types_name(types) << " " << i;
        ASSERT_NEAR(problem.v.get(i), v,
                    state_ulps * ulp_at(types.state, v + 0.001 * g * g) + l2 * 0.01)
            << types_name(types) << " " << i;
        ASSERT_GE(problem.v.get(i), 0.0);
      }
    }
  }
}

TEST(CpuAdamRollback, The_first_step_comes_back_to_a_state_of_zero) {
  float p[1] = {0.5f}, g[1] = {0.3f}, m[1] = {}, v[1] = {};
  const AdamTensor tensor{p, g, m, v, 1};
  cpu_adam_step(&tensor, 1, {});
  cpu_adam_rollback(&tensor, 1, {});
  EXPECT_NEAR(p[0], 0.5f, 1e-7);
  EXPECT_NEAR(m[0], 0.0f, 1e-8);
  EXPECT_NEAR(v[0], 0.0f, 1e-10);
  EXPECT_GE(v[0], 0.0f);
}

TEST(CpuAdamRollback, Refuses_what_cannot_be_undone) {
  AdamOptions options;
  options.beta1 = 0.0;
  EXPECT_THROW(cpu_adam_rollback(nullptr, 0, options), std::invalid_argument);
  options = {};
  options.lr = 1.0;
  options.weight_decay = 1.0;
  EXPECT_THROW(cpu_adam_rollback(nullptr, 0, options), std::invalid_argument);
  options.adamw = false;
  EXPECT_NO_THROW(cpu_adam_rollback(nullptr, 0, options));
}

TEST(CpuAdam, Options_out_of_range_are_refused_before_anything_is_written) {
  Problem problem(kF32, 10);
  const Problem before = problem;
  const AdamTensor tensor = problem.tensor();
  const auto refused = [&](auto change) {
    AdamOptions options;
    change(options);
    EXPECT_THROW(cpu_adam_step(&tensor, 1, options), std::invalid_argument);
    EXPECT_TRUE(same(problem, before));
  };
  refused([](AdamOptions& o) { o.step = 0; });
  refused([](AdamOptions& o) { o.step = -1; });
  refused([](AdamOptions& o) { o.beta1 = 1.0; });
  refused([](AdamOptions& o) { o.beta2 = -0.1; });
  refused([](AdamOptions& o) { o.beta2 = NAN; });
  refused([](AdamOptions& o) { o.eps = -1e-8; });
  refused([](AdamOptions& o) { o.lr = INFINITY; });
  refused([](AdamOptions& o) { o.weight_decay = NAN; });
}

TEST(CpuAdam, Memory_that_stands_in_the_list_twice_is_refused_before_anything_is_written) {
  Problem problem(kF32, 10);
  const Problem before = problem;
  const std::vector<AdamTensor> list = {problem.tensor(), problem.tensor()};
  EXPECT_THROW(cpu_adam_step(list.data(), 2, {}), std::invalid_argument);
  AdamTensor aliased = problem.tensor();
  aliased.grad = aliased.param;
  EXPECT_THROW(cpu_adam_step(&aliased, 1, {}), std::invalid_argument);
  EXPECT_TRUE(same(problem, before));
}

TEST(CpuAdamLarge, More_than_two_to_the_31_elements_are_all_updated_once) {
  constexpr std::int64_t kWindow = 1 << 21, kRepetitions = 1024, kTail = 17;
  constexpr std::int64_t kSize = kWindow * kRepetitions + kTail;
  static_assert(kSize > std::int64_t{1} << 31);
  RepeatedMemory p(kWindow * 2, kRepetitions, kTail * 2), g(kWindow * 2, kRepetitions, kTail * 2),
      m(kWindow * 2, kRepetitions, kTail * 2), v(kWindow * 2, kRepetitions, kTail * 2);
  const auto fill = [&](f16* ps, f16* gs, f16* ms, f16* vs, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
      from_float(0.0f, ps[i]);
      from_float(static_cast<float>(i % 5) - 2.0f, gs[i]);
      from_float(0.0f, ms[i]);
      from_float(0.0f, vs[i]);
    }
  };
  fill(p.window<f16>(), g.window<f16>(), m.window<f16>(), v.window<f16>(), kWindow);
  fill(p.tail<f16>(), g.tail<f16>(), m.tail<f16>(), v.tail<f16>(), kTail);
  AdamOptions options;
  options.lr = 0x1p-6;  // 1,024 steps of it are exact in f16, so that every step counts.
  const AdamTensor large{p.data(), g.data(),   m.data(),   v.data(),
                         kSize,    DType::f16, DType::f16, DType::f16};
  cpu_adam_step(&large, 1, options, kOneThread);

  constexpr std::int64_t kSample = 64;
  std::vector<f16> sp(kSample), sg(kSample), sm(kSample), sv(kSample);
  fill(sp.data(), sg.data(), sm.data(), sv.data(), kSample);
  const AdamTensor sample{sp.data(), sg.data(),  sm.data(),  sv.data(),
                          kSample,   DType::f16, DType::f16, DType::f16};
  const auto expect = [&](const f16* got_p, const f16* got_v, std::int64_t n, const char* where) {
    for (std::int64_t i = 0; i < n; ++i) {
      const auto s = static_cast<std::size_t>(i % 5);  // The pattern of the gradients.
      ASSERT_EQ(got_p[i].bits, sp[s].bits) << where << " " << i;
      ASSERT_EQ(got_v[i].bits, sv[s].bits) << where << " " << i;
    }
  };
  cpu_adam_step(&sample, 1, options, kOneThread);
  expect(p.tail<f16>(), v.tail<f16>(), kTail, "tail");
  for (std::int64_t i = 1; i < kRepetitions; ++i) cpu_adam_step(&sample, 1, options, kOneThread);
  expect(p.window<f16>(), v.window<f16>(), kWindow, "window");
}

}  // namespace
}  // namespace ds

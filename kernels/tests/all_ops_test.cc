// All ops in one program. That this file links is the first test: nothing is defined twice.

#include <gtest/gtest.h>
#include <omp.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <string>

#include "cpu_adagrad.h"
#include "cpu_adam.h"
#include "cpu_lion.h"

namespace {

struct Op {
  const char* name;
  DsSelfTestFunction self_test;
};

class AllOps : public testing::TestWithParam<Op> {};

std::size_t threads_of_this_process() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator("/proc/self/task")) {
    ++count;
  }
  return count;
}

TEST_P(AllOps, Self_test_gives_right_numbers_in_one_line_fast_and_leaves_no_thread) {
  const std::size_t threads = threads_of_this_process();
  char detail[200];
  std::memset(detail, '?', sizeof detail);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(GetParam().self_test("cpu", detail, sizeof detail), DS_SELF_TEST_OK) << detail;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  const std::string text = detail;
  EXPECT_NE(text.find("ulp"), std::string::npos) << text;
  EXPECT_NE(text.find("scalar"), std::string::npos) << text;
  EXPECT_EQ(text.find('\n'), std::string::npos);
#if defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__)
  EXPECT_LT(took.count(), 0.1);
#endif
  EXPECT_EQ(threads_of_this_process(), threads);
}

TEST_P(AllOps, Self_test_skips_a_device_that_the_op_has_no_code_for) {
  char detail[200] = "";
  EXPECT_EQ(GetParam().self_test("cuda", detail, sizeof detail), DS_SELF_TEST_SKIPPED);
  EXPECT_STREQ(detail, "has code for cpu, not for cuda");
}

TEST_P(AllOps, Self_test_cuts_its_text_to_the_room_there_is) {
  char detail[8] = {'x', 'x', 'x', 'x', 'x', 'x', 'x', 'x'};
  EXPECT_EQ(GetParam().self_test(nullptr, detail, 4), DS_SELF_TEST_OK);
  EXPECT_EQ(detail[3], '\0');
  EXPECT_EQ(detail[4], 'x');
  EXPECT_EQ(GetParam().self_test(nullptr, nullptr, 0), DS_SELF_TEST_OK);
}

INSTANTIATE_TEST_SUITE_P(Ops, AllOps,
                         testing::Values(Op{"cpu_adam", ds_self_test_cpu_adam},
                                         Op{"cpu_adagrad", ds_self_test_cpu_adagrad},
                                         Op{"cpu_lion", ds_self_test_cpu_lion}),
                         [](const auto& op) { return op.param.name; });

TEST(AllOpsInOneProgram, Each_updates_its_own_and_shares_no_state) {
  float p[3] = {1, 1, 1}, g[3] = {1, 1, 1}, m[3] = {}, v[3] = {};
  ds::AdamTensor adam{&p[0], &g[0], &m[0], &v[0], 1};
  ds::AdagradTensor adagrad{&p[1], &g[1], &v[1], 1};
  ds::LionTensor lion{&p[2], &g[2], &m[2], 1};
  ds::cpu_adam_step(&adam, 1, {});
  ds::cpu_adagrad_step(&adagrad, 1, {});
  ds::cpu_lion_step(&lion, 1, {});
  EXPECT_FLOAT_EQ(p[0], 1 - 1e-3f);
  EXPECT_FLOAT_EQ(p[1], 1 - 1e-2f);
  EXPECT_FLOAT_EQ(p[2], 1 - 1e-4f);
}

}  // namespace

#include "cpu_optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

namespace ds {
namespace {

std::vector<std::int64_t> ends_of(const std::vector<std::int64_t>& sizes) {
  std::vector<std::int64_t> ends;
  std::int64_t total = 0;
  for (std::int64_t size : sizes) ends.push_back(total += size);
  return ends;
}

// Every element exactly once, and none of an empty tensor.
void expect_exact_cover(const std::vector<std::int64_t>& sizes, int parts) {
  std::vector<std::int64_t> next(sizes.size(), 0);
  const std::vector<std::int64_t> ends = ends_of(sizes);
  for (int part = 0; part < parts; ++part) {
    for_each_piece(ends, part, parts, [&](std::size_t i, std::int64_t first, std::int64_t size) {
      ASSERT_LT(i, sizes.size());
      ASSERT_GT(size, 0);
      ASSERT_EQ(first, next[i]) << "tensor " << i << ", part " << part << " of " << parts;
      next[i] += size;
    });
  }
  EXPECT_EQ(next, sizes) << parts << " parts";
}

TEST(ForEachPiece, Covers_every_element_once_for_any_list_and_any_number_of_threads) {
  const std::vector<std::vector<std::int64_t>> lists = {{},
                                                        {0},
                                                        {0, 0, 0},
                                                        {1},
                                                        {1, 0, 1},
                                                        {0, 5, 0, 0, 7, 0},
                                                        {1023, 1024, 1025},
                                                        {100'000},
                                                        {1, 100'000, 1},
                                                        {31, 32, 33, 4096, 0, 65'536, 1},
                                                        std::vector<std::int64_t>(1000, 3)};
  for (const auto& list : lists) {
    for (int parts : {1, 2, 3, 7, 16, 128}) expect_exact_cover(list, parts);
  }
}

TEST(ForEachPiece, Sizes_beyond_32_bits_are_cut_without_overflow) {
  const std::int64_t large = (std::int64_t{1} << 31) + 17;
  for (int parts : {1, 2, 3, 64}) {
    expect_exact_cover({large}, parts);
    expect_exact_cover({3, large, large, 5}, parts);
    expect_exact_cover({std::int64_t{1} << 61, 0, std::int64_t{1} << 61}, parts);
  }
}

TEST(ForEachPiece, Shares_differ_by_little) {
  const std::vector<std::int64_t> ends = ends_of({1'000'000, 10, 3'000'000});
  for (int part = 0; part < 8; ++part) {
    std::int64_t share = 0;
    for_each_piece(ends, part, 8, [&](std::size_t, std::int64_t, std::int64_t n) { share += n; });
    EXPECT_NEAR(static_cast<double>(share), 500'001.25, 2048);
  }
}

constexpr OptimizerNames kNames{"ds::some_step", {"exp_avgs", "exp_avg_sqs"}};

OptimizerTensor tensor(float* base, std::int64_t size) {
  return {base,       base + size, {base + 2 * size, base + 3 * size}, size, DType::f32,
          DType::f32, DType::f32};
}

std::string refusal(const std::vector<OptimizerTensor>& tensors) {
  try {
    check_tensors(tensors, kNames);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(CheckTensors, Neighbours_in_memory_are_fine) {
  std::vector<float> memory(80);
  EXPECT_EQ(refusal({tensor(memory.data(), 10), tensor(memory.data() + 40, 10)}), "");
}

TEST(CheckTensors, Gradients_may_share_memory_among_themselves) {
  std::vector<float> memory(80);
  OptimizerTensor a = tensor(memory.data(), 10), b = tensor(memory.data() + 40, 10);
  b.grad = a.grad;
  EXPECT_EQ(refusal({a, b}), "");
}

TEST(CheckTensors, Memory_that_is_written_and_stands_in_the_lists_twice_is_refused_by_name) {
  std::vector<float> memory(120);
  const OptimizerTensor a = tensor(memory.data(), 10), b = tensor(memory.data() + 40, 10);
  OptimizerTensor bad = b;
  bad.param = a.param;
  EXPECT_EQ(refusal({a, bad}), "ds::some_step: params[0] and params[1] share memory");
  bad = b;
  bad.states[1] = memory.data() + 35;  // Half of a's.
  EXPECT_EQ(refusal({a, bad}), "ds::some_step: exp_avg_sqs[0] and exp_avg_sqs[1] share memory");
  bad = b;
  bad.grad = bad.param;
  EXPECT_THAT(refusal({a, bad}), testing::HasSubstr("[1] share memory"));
  bad = a;
  bad.states[1] = bad.states[0];
  EXPECT_THAT(refusal({bad}), testing::HasSubstr("share memory"));
}

// A long range that is only read reaches over later ones; the sweep must not forget the written
// range before it.
TEST(CheckTensors, A_long_gradient_hides_no_collision) {
  std::vector<float> memory(400);
  OptimizerTensor a = tensor(memory.data(), 10);
  OptimizerTensor b = tensor(memory.data() + 200, 40);
  b.grad = memory.data() + 35;  // Over the end of a's last state.
  EXPECT_EQ(refusal({a, b}), "ds::some_step: exp_avg_sqs[0] and grads[1] share memory");
}

TEST(CheckTensors, Empty_tensors_may_be_null_and_anywhere) {
  std::vector<float> memory(40);
  OptimizerTensor empty = tensor(nullptr, 0);
  OptimizerTensor inside = tensor(memory.data() + 5, 0);
  EXPECT_EQ(refusal({empty, tensor(memory.data(), 10), inside}), "");
}

TEST(CheckTensors, Null_misaligned_and_negative_are_refused) {
  std::vector<float> memory(40);
  OptimizerTensor bad = tensor(memory.data(), 10);
  bad.states[1] = nullptr;
  EXPECT_EQ(refusal({bad}), "ds::some_step: tensor 0: exp_avg_sqs is null");
  bad = tensor(memory.data(), 10);
  bad.grad = reinterpret_cast<const char*>(memory.data()) + 41;
  EXPECT_EQ(refusal({bad}), "ds::some_step: tensor 0: grads is not aligned to its elements");
  bad = tensor(memory.data(), 10);
  bad.size = -1;
  EXPECT_EQ(refusal({bad}), "ds::some_step: tensor 0: the size is -1");
  bad.size = INT64_MAX;
  EXPECT_EQ(refusal({bad}), "ds::some_step: tensor 0: the size exceeds the memory");
}

TEST(CheckTensors, States_of_another_16_bit_type_than_the_parameter_are_refused) {
  std::vector<float> memory(40);
  OptimizerTensor bad = tensor(memory.data(), 10);
  bad.state_dtype = DType::bf16;
  EXPECT_EQ(refusal({bad}), "") << "of an f32 parameter they may be of any type";
  bad.param_dtype = DType::f16;
  EXPECT_EQ(refusal({bad}),
            "ds::some_step: tensor 0: the state is bf16; with parameters of f16 it can be f32 or "
            "the same");
}

TEST(CheckTensors, A_copy_has_16_bits_and_memory_of_its_own) {
  std::vector<float> memory(50);
  OptimizerTensor one = tensor(memory.data(), 10);
  one.copy = memory.data() + 40;
  EXPECT_EQ(refusal({one}), "");
  one.copy_dtype = DType::f32;
  EXPECT_EQ(refusal({one}), "ds::some_step: tensor 0: a copy has 16 bits");
  one.copy_dtype = DType::f16;
  one.copy = memory.data() + 39;
  EXPECT_EQ(refusal({one}), "ds::some_step: exp_avg_sqs[0] and copies[0] share memory");
}

}  // namespace
}  // namespace ds

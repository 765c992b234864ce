// The parts of a layer on the CPU, element by element against float64.

#include "transformer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "cases.h"

namespace ds {
namespace {

using namespace transformer;

template <class Test>
void on_all_paths(const Test& test) {
  for (const CpuIsa isa : runnable_isas()) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      Comparison comparison;
      test(dtype, CpuOptions{1, isa}, comparison);
      EXPECT_TRUE(comparison.ok()) << isa_name(isa) << ": " << comparison.failure();
    }
  }
}

TEST(Transformer, Attention_and_its_gradients_of_odd_sizes_are_right) {
  on_all_paths([](DType dtype, const CpuOptions& cpu, Comparison& c) {
    for (const AttentionSizes& sizes : {AttentionSizes{1, 1, 1, 8},
                                        {2, 2, 7, 16},
                                        {1, 2, 64, 64},
                                        {1, 3, 65, 24},
                                        {1, 1, 130, 8}}) {
      for (const bool one_row : {false, true}) {
        test_attention(dtype, sizes, 0.0, one_row, cpu, c);
        test_attention(dtype, sizes, 0.1, one_row, cpu, c);
      }
    }
  });
}

TEST(Transformer, Norms_and_their_gradients_from_input_and_from_output_are_right) {
  on_all_paths([](DType dtype, const CpuOptions& cpu, Comparison& c) {
    for (const std::int64_t columns : {8, 31, 32, 1024, 1500}) {
      for (const std::int64_t rows : {0, 1, 3, 70}) {
        for (const bool from_out : {false, true}) test_norm(dtype, rows, columns, from_out, cpu, c);
      }
    }
  });
}

TEST(Transformer, Dropout_sums_and_activations_are_right) {
  on_all_paths([](DType dtype, const CpuOptions& cpu, Comparison& c) {
    for (const std::int64_t columns : {1, 8, 31, 1000}) {
      for (const double dropout : {0.0, 0.1, 0.9}) test_rows(dtype, 3, columns, dropout, cpu, c);
    }
  });
}

TEST(Transformer, Dropout_keeps_the_share_it_should_and_follows_from_seed_and_offset) {
  const std::int64_t size = 1 << 20;
  std::vector<float> ones(static_cast<std::size_t>(size), 1.0f);
  const auto dropped = [&](const RandomSource& source, int threads) {
    std::vector<float> out(ones.size());
    dropout_backward({ones.data(), out.data(), size, {0.1, source}, DType::f32},
                     {threads, CpuIsa::automatic});
    return out;
  };
  const std::vector<float> first = dropped({1, 0, nullptr}, 1);
  EXPECT_EQ(first, dropped({1, 0, nullptr}, 3));
  std::int64_t kept = 0, alike = 0;
  double sum = 0.0;
  const std::vector<float> other = dropped({1, 1, nullptr}, 1);
  for (std::size_t i = 0; i < first.size(); ++i) {
    kept += first[i] != 0.0f;
    alike += first[i] != 0.0f && other[i] != 0.0f;
    sum += static_cast<double>(first[i]);
  }
  // Five standard deviations of a binomial.
  const double n = static_cast<double>(size);
  EXPECT_NEAR(static_cast<double>(kept), 0.9 * n, 5 * std::sqrt(0.09 * n));
  EXPECT_NEAR(static_cast<double>(alike), 0.81 * n, 5 * std::sqrt(0.81 * 0.19 * n));
  EXPECT_NEAR(sum, n, 5 * std::sqrt(0.09 * n) / 0.9);
  EXPECT_NE(first, dropped({2, 0, nullptr}, 1));
}

TEST(Transformer, All_paths_and_any_number_of_threads_give_the_same_bits) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::int64_t rows = 150, columns = 100;
    const auto gradients = [&](const CpuOptions& cpu) {
      Numbers x(dtype, rows * columns, 1, 2.0), gamma(dtype, columns, 2, 1.0),
          grad(dtype, rows * columns, 3, 1.0);
      Buffer out(dtype, rows * columns), of_gamma(dtype, columns), of_beta(dtype, columns);
      std::vector<float> factors(static_cast<std::size_t>(rows));
      layer_norm({x.stored.data(), gamma.stored.data(), gamma.stored.data(), out.data(),
                  factors.data(), rows, columns, 1e-5, dtype},
                 cpu);
      layer_norm_backward(
          {x.stored.data(), nullptr, gamma.stored.data(), nullptr, factors.data(),
           grad.stored.data(), out.data(), of_gamma.data(), of_beta.data(), rows, columns, dtype},
          cpu);
      // 5 tokens of 10·4·3·5 elements each, of the norm's rows.
      LayerAttention call{};
      Buffer context(dtype, 5000), of_qkv(dtype, 15000);
      std::vector<float> log_sums(250);
      call.qkv = x.stored.data();
      call.out = context.data();
      call.log_sums = log_sums.data();
      call.batch = 5;
      call.heads = 2;
      call.tokens = 25;
      call.head_size = 20;
      call.dropout = {0.2, {5, 6, nullptr}};
      call.dtype = dtype;
      layer_attention(call, cpu);
      layer_attention_backward({call, grad.stored.data(), of_qkv.data()}, cpu);
      std::vector<Buffer> all{out, of_gamma, of_beta, context, of_qkv};
      return all;
    };
    const std::vector<Buffer> want = gradients({1, CpuIsa::scalar});
    for (const CpuIsa isa : runnable_isas()) {
      for (const int threads : {1, 2, 5}) {
        EXPECT_TRUE(gradients({threads, isa}) == want) << isa_name(isa) << ", " << threads;
      }
    }
  }
}

TEST(Transformer, Slopes_of_large_values_are_one_and_zero_and_of_nan_are_none) {
  for (const CpuIsa isa : runnable_isas()) {
    const float x[4] = {1e30f, -1e30f, NAN, INFINITY}, bias[4] = {}, grad[4] = {1, 1, 1, 1};
    float out[4];
    bias_gelu({x, bias, grad, out, 1, 4, DType::f32}, {1, isa});
    EXPECT_EQ(out[0], 1.0f);
    EXPECT_EQ(out[1], 0.0f);
    EXPECT_TRUE(std::isnan(out[2]));
    EXPECT_EQ(out[3], 1.0f);
  }
}

TEST(Transformer, What_is_wrong_is_refused) {
  float x[16] = {};
  const auto refused = [](const auto& compute) { EXPECT_THROW(compute(), std::invalid_argument); };
  for (const double ratio : {-0.1, 1.0, std::numeric_limits<double>::quiet_NaN()}) {
    refused([&] { dropout_backward({x, x, 4, {ratio, {}}, DType::f32}, {}); });
  }
  refused([&] { dropout_backward({nullptr, x, 4, {}, DType::f32}, {}); });
  refused([&] { bias_gelu({x, x, nullptr, x, -1, 4, DType::f32}, {}); });
  refused([&] { layer_norm({x, x, x, x, x, 1, 4, -1.0, DType::f32}, {}); });
  refused([&] { layer_norm_backward({x, x, x, x, x, x, x, x, x, 1, 4, DType::f32}, {}); });
  std::uint64_t source[2] = {};
  refused([&] { dropout_backward({x, x, 4, {0.1, {0, 0, source}}, DType::f32}, {}); });
}

TEST(Transformer, Self_test_is_right) {
  char detail[200];
  EXPECT_EQ(ds_self_test_transformer("cpu", detail, sizeof detail), DS_SELF_TEST_OK) << detail;
  EXPECT_EQ(ds_self_test_transformer("cuda", detail, sizeof detail), DS_SELF_TEST_SKIPPED);
}

}  // namespace
}  // namespace ds

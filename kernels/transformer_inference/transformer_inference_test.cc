// transformer_inference on the CPU, element by element against float64.

#include "transformer_inference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>

#include "cases.h"

namespace ds {
namespace {

using namespace transformer_inference;

constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};

template <class Test>
void on_all_paths(const Test& test) {
  for (const CpuIsa isa : runnable_isas()) {
    for (const DType dtype : kTypes) {
      Comparison comparison;
      test(dtype, CpuOptions{1, isa}, comparison);
      EXPECT_TRUE(comparison.ok()) << isa_name(isa) << ": " << comparison.failure();
    }
  }
}

TEST(TransformerInference, Norms_of_rows_of_any_length_are_right) {
  on_all_paths([](DType dtype, const CpuOptions& cpu, Comparison& c) {
    for (const std::int64_t columns : {1, 2, 15, 16, 17, 100, 1024, 1025, 5000}) {
      for (const std::int64_t rows : {0, 1, 3}) {
        for (const bool with_sum : {false, true}) {
          test_norm(dtype, rows, columns, NormKind::rms, with_sum, cpu, c);
          if (columns > 2) test_norm(dtype, rows, columns, NormKind::layer, with_sum, cpu, c);
        }
      }
    }
  });
}

TEST(TransformerInference, Activations_and_gates_are_right) {
  on_all_paths([](DType dtype, const CpuOptions& cpu, Comparison& c) {
    for (const Activation activation :
         {Activation::identity, Activation::relu, Activation::gelu_tanh, Activation::gelu,
          Activation::silu}) {
      for (const std::int64_t columns : {0, 1, 16, 31, 1000}) {
        test_activation(dtype, 3, columns, activation, false, cpu, c);
        test_activation(dtype, 3, columns, activation, true, cpu, c);
      }
    }
  });
}

TEST(TransformerInference, Sums_of_residuals_and_experts_and_int8_weights_are_right) {
  on_all_paths([](DType dtype, const CpuOptions& cpu, Comparison& c) {
    for (const std::int64_t columns : {1, 16, 31, 1000}) test_sums(dtype, 3, columns, cpu, c);
  });
}

TEST(TransformerInference, Softmax_under_a_mask_a_triangle_and_a_window_is_right) {
  on_all_paths([](DType dtype, const CpuOptions& cpu, Comparison& c) {
    for (const std::int64_t keys : {1, 15, 16, 33, 200}) {
      for (const std::int64_t queries : {std::int64_t{1}, keys}) {
        test_softmax(dtype, 2, queries, keys, false, 0, cpu, c);
        test_softmax(dtype, 2, queries, keys, true, 0, cpu, c);
        test_softmax(dtype, 2, queries, keys, true, 7, cpu, c);
      }
    }
  });
}

TEST(TransformerInference, Attention_of_odd_sizes_with_all_its_terms_is_right) {
  on_all_paths([](DType dtype, const CpuOptions& cpu, Comparison& c) {
    for (const AttentionSizes& sizes : {AttentionSizes{1, 1, 1, 1, 1, 8},
                                        {2, 2, 2, 1, 65, 64},
                                        {1, 4, 2, 7, 7, 20},
                                        {1, 3, 1, 66, 130, 40},
                                        {1, 2, 2, 5, 64, 128},
                                        {2, 6, 2, 1, 130, 40},
                                        {1, 8, 1, 1, 70, 16},
                                        {1, 2, 1, 3, 200, 1}}) {
      test_attention(dtype, sizes, false, 0, cpu, c);
      test_attention(dtype, sizes, true, 0, cpu, c);
      test_attention(dtype, sizes, true, 3, cpu, c);
      test_attention(dtype, sizes, false, 70, cpu, c);
    }
  });
}

TEST(TransformerInference, Rotary_embedding_of_halves_and_of_neighbours_is_right) {
  on_all_paths([](DType dtype, const CpuOptions& cpu, Comparison& c) {
    for (const bool half : {false, true}) {
      test_rotary(dtype, 2, 5, 64, 64, half, cpu, c);
      test_rotary(dtype, 2, 5, 40, 22, half, cpu, c);
      test_rotary(dtype, 1, 1, 2, 2, half, cpu, c);
      test_rotary(dtype, 1, 3, 8, 0, half, cpu, c);
    }
  });
}

Buffer attention_with(const CpuOptions& cpu, DType dtype) {
  const std::int64_t n = 100, d = 48;
  const Buffer q = random_buffer(dtype, 4 * n * d, 1, 4), k = random_buffer(dtype, 4 * n * d, 2),
               v = random_buffer(dtype, 4 * n * d, 3);
  Buffer out(dtype, 4 * n * d);
  CachedAttention call{};
  call.query = q.data();
  call.key = k.data();
  call.value = v.data();
  call.out = out.data();
  call.query_strides = call.key_strides = call.value_strides = call.out_strides = {0, n * d, d};
  call.batch = 1;
  call.heads = call.kv_heads = 4;
  call.queries = call.keys = n;
  call.head_size = d;
  call.scale = 0.3;
  call.terms.causal = true;
  call.dtype = dtype;
  cached_attention(call, cpu);
  return out;
}

TEST(TransformerInference, All_paths_and_any_number_of_threads_give_the_same_bits) {
  for (const DType dtype : kTypes) {
    const Buffer want = attention_with({1, CpuIsa::scalar}, dtype);
    for (const CpuIsa isa : runnable_isas()) {
      for (const int threads : {1, 2, 5}) {
        EXPECT_EQ(attention_with({threads, isa}, dtype), want) << isa_name(isa) << ", " << threads;
      }
      const Buffer x = random_buffer(dtype, 3 * 1500, 4, 9), gamma = random_buffer(dtype, 1500, 5);
      Buffer norm(dtype, 3 * 1500), scalar(dtype, 3 * 1500);
      for (Buffer* out : {&norm, &scalar}) {
        NormRows call{};
        call.x = x.data();
        call.gamma = gamma.data();
        call.out = out->data();
        call.rows = 3;
        call.columns = 1500;
        call.epsilon = 1e-6;
        call.kind = NormKind::layer;
        call.dtype = dtype;
        norm_rows(call, {1, out == &norm ? isa : CpuIsa::scalar});
        activation_rows(
            {out->data(), nullptr, out->data(), 3, 1500, Activation::gelu, false, dtype},
            {1, out == &norm ? isa : CpuIsa::scalar});
      }
      EXPECT_EQ(norm, scalar) << isa_name(isa);
    }
  }
}

TEST(TransformerInference, What_is_not_a_number_stays_none_and_large_scores_do_not_overflow) {
  for (const CpuIsa isa : runnable_isas()) {
    Buffer x(DType::f32, 8), out(DType::f32, 8);
    for (std::int64_t i = 0; i < 4; ++i) {
      x.set(i, 1e30 * static_cast<double>(i));
      x.set(4 + i, i == 2 ? NAN : 1.0);
    }
    softmax_rows({x.data(), out.data(), 1, 1, 2, 4, 1.0, {}, DType::f32}, {1, isa});
    EXPECT_EQ(out.get(3), 1.0);
    EXPECT_EQ(out.get(0), 0.0);
    EXPECT_TRUE(std::isnan(out.get(4)));
    for (const Activation a :
         {Activation::relu, Activation::gelu_tanh, Activation::gelu, Activation::silu}) {
      Buffer y(DType::f32, 3), z(DType::f32, 3);
      y.set(0, NAN);
      y.set(1, -1e30);
      y.set(2, 1e30);
      activation_rows({y.data(), nullptr, z.data(), 1, 3, a, false, DType::f32}, {1, isa});
      EXPECT_TRUE(std::isnan(z.get(0)));
      EXPECT_EQ(z.get(1), 0.0) << isa_name(isa) << " " << static_cast<int>(a);
      EXPECT_EQ(z.get(2), y.get(2)) << isa_name(isa) << " " << static_cast<int>(a);
    }
  }
}

TEST(TransformerInference, What_is_wrong_is_refused) {
  float x[16] = {};
  const auto refused = [](const auto& compute) { EXPECT_THROW(compute(), std::invalid_argument); };
  refused([&] {
    norm_rows({x, nullptr, nullptr, nullptr, nullptr, x, nullptr, 1, 4, 1e-5, NormKind::layer,
               DType::f32},
              {});
  });
  refused([&] {
    norm_rows(
        {x, nullptr, nullptr, x, nullptr, x, nullptr, -1, 4, 1e-5, NormKind::layer, DType::f32},
        {});
  });
  refused([&] { activation_rows({x, nullptr, x, 1, 4, Activation::silu, true, DType::f32}, {}); });
  refused([&] {
    activation_rows(
        {reinterpret_cast<char*>(x) + 1, nullptr, x + 4, 1, 2, Activation::relu, false, DType::f32},
        {});
  });
  std::int8_t q[6] = {};
  refused([&] { dequantize_rows({q, x, x, 3, 2, 2, DType::f32}, {}); });
  CachedAttention call{};
  call.heads = 3;
  call.kv_heads = 2;
  refused([&] { cached_attention(call, {}); });
  Rotary turn{};
  turn.head_size = 4;
  turn.rotary_dim = 3;
  turn.theta = 1e4;
  refused([&] { rotary(turn, {}); });
}

// One head of a cache of more than 2^31 elements, of which pages are used that are looked at.
TEST(TransformerInference, Large_caches_beyond_32_bits_are_read_where_they_are) {
  const std::int64_t d = 64, room = (std::int64_t{1} << 31) / d + 16;
  // Pages that nobody writes take no memory.
  const std::unique_ptr<std::uint16_t, decltype(&std::free)> pages(
      static_cast<std::uint16_t*>(std::calloc(static_cast<std::size_t>(room * d + d), 2)),
      &std::free);
  if (pages == nullptr) GTEST_SKIP() << "there are no 4 GiB of addresses";
  std::uint16_t* cache = pages.get();
  // bf16: 1 in the value of the second head's only key.
  std::vector<std::uint16_t> q(static_cast<std::size_t>(2 * d)),
      out(static_cast<std::size_t>(2 * d));
  for (std::int64_t i = 0; i < d; ++i) cache[room * d + i] = 0x3f80;
  CachedAttention call{};
  call.query = q.data();
  call.key = call.value = cache;
  call.out = out.data();
  call.query_strides = call.out_strides = {2 * d, d, d};
  call.key_strides = call.value_strides = {0, room * d, d};
  call.batch = 1;
  call.heads = call.kv_heads = 2;
  call.queries = call.keys = 1;
  call.head_size = d;
  call.scale = 1.0;
  call.dtype = DType::bf16;
  cached_attention(call, {1, CpuIsa::automatic});
  EXPECT_EQ(out[0], 0);
  EXPECT_EQ(out[static_cast<std::size_t>(d)], 0x3f80);
}

TEST(TransformerInference, Self_test_is_right_and_takes_little_time) {
  char detail[200];
  EXPECT_EQ(ds_self_test_transformer_inference("", detail, sizeof detail), DS_SELF_TEST_OK)
      << detail;
  EXPECT_NE(std::string(detail).find("scalar"), std::string::npos) << detail;
  EXPECT_EQ(ds_self_test_transformer_inference("cuda", detail, sizeof detail),
            DS_SELF_TEST_SKIPPED);
}

}  // namespace
}  // namespace ds

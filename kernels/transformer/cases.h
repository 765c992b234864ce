#pragma once

// What the self-test and the tests compute, against the reference. Inputs are of the type, so the
// reference gets the same numbers as doubles.

#include <cstring>
#include <string>
#include <vector>

#include "reference.h"
#include "self_test.h"
#include "transformer.h"

namespace ds::transformer {

// Numbers of a type, and the same as doubles.
struct Numbers {
  Numbers(DType dtype, std::int64_t size) : stored(dtype, size), exact(of(size)) {}
  Numbers(DType dtype, std::int64_t size, std::uint64_t seed, double scale) : Numbers(dtype, size) {
    Random random(seed);
    for (std::int64_t i = 0; i < size; ++i) set(i, scale * random.next());
  }
  void set(std::int64_t i, double value) {
    stored.set(i, value);
    exact[static_cast<std::size_t>(i)] = stored.get(i);
  }
  static std::vector<double> of(std::int64_t size) {
    return std::vector<double>(static_cast<std::size_t>(size));
  }

  Buffer stored;
  std::vector<double> exact;
};

// Element by element; `scale` is the size of what was added up, in units of `extra` ulp.
inline void compare(const char* name, const Numbers& got, double scale, double extra,
                    Comparison& comparison) {
  for (std::size_t i = 0; i < got.exact.size(); ++i) {
    comparison.check(name, static_cast<std::int64_t>(i), got.stored, {got.exact[i], scale}, extra);
  }
  if (!got.stored.guard_is_intact()) {
    comparison.fail(std::string(name) + ": wrote behind the last element");
  }
}

struct AttentionSizes {
  std::int64_t batch, heads, tokens, head_size;
};

// Forward and backward; of each sequence one query sees nothing, or, with one row of the mask for
// all queries, all of the first sequence.
inline void test_attention(DType dtype, const AttentionSizes& z, double dropout, bool one_row,
                           const CpuOptions& cpu, Comparison& comparison) {
  const std::int64_t size = z.batch * z.tokens * z.heads * z.head_size;
  Numbers qkv(dtype, 3 * size, 1, 1.0), out(dtype, size), grad(dtype, size, 2, 1.0),
      of_qkv(dtype, 3 * size);
  Numbers mask(dtype, z.batch * z.tokens * z.tokens, 3, 1.0);
  for (std::int64_t b = 0; b < z.batch; ++b) {
    for (std::int64_t key = 0; key < z.tokens; ++key) {
      mask.set((b * z.tokens + z.tokens / 2) * z.tokens + key,
               -std::numeric_limits<double>::infinity());
      if (one_row && b == 0) mask.set(key, -std::numeric_limits<double>::infinity());
    }
  }
  std::vector<float> log_sums(static_cast<std::size_t>(z.batch * z.heads * z.tokens));
  std::vector<double> exact_log_sums(log_sums.size());
  LayerAttention call{};
  call.qkv = qkv.stored.data();
  call.mask = mask.stored.data();
  call.mask_strides[0] = z.tokens * z.tokens;
  call.mask_strides[2] = one_row ? 0 : z.tokens;
  call.out = out.stored.data();
  call.log_sums = log_sums.data();
  call.batch = z.batch;
  call.heads = z.heads;
  call.tokens = z.tokens;
  call.head_size = z.head_size;
  call.dropout.ratio = dropout;
  call.dropout.source = {11, 4, nullptr};
  call.dtype = dtype;
  layer_attention(call, cpu);
  layer_attention_backward({call, grad.stored.data(), of_qkv.stored.data()}, cpu);
  LayerAttention exact = call;
  exact.qkv = qkv.exact.data();
  exact.mask = mask.exact.data();
  exact.out = out.exact.data();
  reference::layer_attention(exact, exact_log_sums.data());
  reference::layer_attention_backward({exact, grad.exact.data(), of_qkv.exact.data()});
  // Backward of 16-bit types reads the rounded output, half an ulp off, head_size times.
  compare("attention", out, 1.0, dtype == DType::f32 ? 12.0 : 0.1, comparison);
  compare("grad_qkv", of_qkv, dtype == DType::f32 ? 4.0 : 2.0, dtype == DType::f32 ? 24.0 : 1.5,
          comparison);
}

inline void test_norm(DType dtype, std::int64_t rows, std::int64_t columns, bool from_out,
                      const CpuOptions& cpu, Comparison& comparison) {
  const std::int64_t size = rows * columns;
  Numbers x(dtype, size, 4, 3.0), gamma(dtype, columns, 5, 0.5), beta(dtype, columns, 6, 1.0),
      grad(dtype, size, 7, 1.0), out(dtype, size), of_x(dtype, size), of_gamma(dtype, columns),
      of_beta(dtype, columns);
  for (std::int64_t c = 0; c < columns; ++c) {
    gamma.set(c, 1.0 + gamma.stored.get(c));
  }
  std::vector<float> factors(static_cast<std::size_t>(rows));
  std::vector<double> exact_factors(factors.size());
  LayerNorm call{};
  call.x = x.stored.data();
  call.gamma = gamma.stored.data();
  call.beta = beta.stored.data();
  call.out = out.stored.data();
  call.factors = factors.data();
  call.rows = rows;
  call.columns = columns;
  call.epsilon = 1e-12;
  call.dtype = dtype;
  layer_norm(call, cpu);
  LayerNorm exact = call;
  exact.x = x.exact.data();
  exact.gamma = gamma.exact.data();
  exact.beta = beta.exact.data();
  exact.out = out.exact.data();
  reference::layer_norm(exact, exact_factors.data());
  compare("norm", out, 4.0, 1.0, comparison);
  // Both from the rounded rows, so that what is compared is the backward alone.
  std::vector<double> rounded = out.exact;
  for (std::int64_t i = 0; i < size; ++i) rounded[static_cast<std::size_t>(i)] = out.stored.get(i);
  LayerNormBackward back{};
  (from_out ? back.out : back.x) = from_out ? call.out : call.x;
  back.gamma = call.gamma;
  back.beta = call.beta;
  back.factors = factors.data();
  back.grad_out = grad.stored.data();
  back.grad_x = of_x.stored.data();
  back.grad_gamma = of_gamma.stored.data();
  back.grad_beta = of_beta.stored.data();
  back.rows = rows;
  back.columns = columns;
  back.dtype = dtype;
  layer_norm_backward(back, cpu);
  LayerNormBackward want = back;
  (from_out ? want.out : want.x) = from_out ? rounded.data() : x.exact.data();
  want.gamma = gamma.exact.data();
  want.beta = beta.exact.data();
  want.grad_out = grad.exact.data();
  want.grad_x = of_x.exact.data();
  want.grad_gamma = of_gamma.exact.data();
  want.grad_beta = of_beta.exact.data();
  reference::layer_norm_backward(want, exact_factors.data());
  const double rows_added = static_cast<double>(rows) + 1.0;
  compare("norm's grad_x", of_x, 4.0, dtype == DType::f32 ? 16.0 : 0.1, comparison);
  compare("norm's grad_gamma", of_gamma, rows_added, dtype == DType::f32 ? 16.0 : 0.1, comparison);
  compare("norm's grad_beta", of_beta, rows_added, dtype == DType::f32 ? 16.0 : 0.1, comparison);
}

inline void test_rows(DType dtype, std::int64_t rows, std::int64_t columns, double dropout,
                      const CpuOptions& cpu, Comparison& comparison) {
  const std::int64_t size = rows * columns;
  Numbers x(dtype, size, 8, 6.0), bias(dtype, columns, 9, 1.0), residual(dtype, size, 10, 1.0),
      grad(dtype, size, 11, 1.0), out(dtype, size);
  const DropoutOptions options{dropout, {7, 3, nullptr}};
  dropout_add({x.stored.data(), bias.stored.data(), residual.stored.data(), out.stored.data(), rows,
               columns, options, dtype},
              cpu);
  reference::dropout_add({x.exact.data(), bias.exact.data(), residual.exact.data(),
                          out.exact.data(), rows, columns, options, dtype});
  compare("dropout_add", out, 8.0, 0.1, comparison);
  dropout_backward({grad.stored.data(), out.stored.data(), size, options, dtype}, cpu);
  reference::dropout_backward({grad.exact.data(), out.exact.data(), size, options, dtype});
  compare("dropout_backward", out, 1.0, 0.1, comparison);
  for (const bool backward : {false, true}) {
    bias_gelu({x.stored.data(), bias.stored.data(), backward ? grad.stored.data() : nullptr,
               out.stored.data(), rows, columns, dtype},
              cpu);
    reference::bias_gelu({x.exact.data(), bias.exact.data(), backward ? grad.exact.data() : nullptr,
                          out.exact.data(), rows, columns, dtype});
    compare("gelu", out, backward ? 2.0 : 7.0, dtype == DType::f32 ? 8.0 : 0.1, comparison);
  }
}

}  // namespace ds::transformer

#pragma once

// What the self-test and the tests compute, against the reference. A case has its own buffers.

#include <algorithm>
#include <string>

#include "reference.h"
#include "self_test.h"
#include "transformer_inference.h"

namespace ds::transformer_inference {

inline Buffer random_buffer(DType dtype, std::int64_t size, std::uint64_t seed, double scale = 1) {
  Buffer buffer(dtype, size);
  Random random(seed);
  for (std::int64_t i = 0; i < size; ++i) buffer.set(i, scale * random.next());
  return buffer;
}

// Sums of many terms get more than one rounding: a few ulp of the largest.
constexpr double kSums = 8.0;

inline void test_norm(DType dtype, std::int64_t rows, std::int64_t columns, NormKind kind,
                      bool with_sum, const CpuOptions& cpu, Comparison& comparison) {
  const std::int64_t size = rows * columns;
  const Buffer x = random_buffer(dtype, size, 1, 3), residual = random_buffer(dtype, size, 2);
  const Buffer bias = random_buffer(dtype, columns, 3), gamma = random_buffer(dtype, columns, 4),
               beta = random_buffer(dtype, columns, 5);
  Buffer out(dtype, size), sum(dtype, size);
  NormRows call{};
  call.x = x.data();
  call.gamma = gamma.data();
  call.beta = kind == NormKind::layer ? beta.data() : nullptr;
  call.out = out.data();
  if (with_sum) {
    call.residual = residual.data();
    call.bias = bias.data();
    call.sum = sum.data();
  }
  call.rows = rows;
  call.columns = columns;
  call.epsilon = 1e-5;
  call.kind = kind;
  call.dtype = dtype;
  norm_rows(call, cpu);
  for (std::int64_t row = 0; row < rows; ++row) {
    reference::Row s, g, b;
    for (std::int64_t c = 0; c < columns; ++c) {
      const std::int64_t i = row * columns + c;
      s.push_back(x.get(i) + (with_sum ? residual.get(i) + bias.get(c) : 0.0));
      g.push_back(gamma.get(c));
      b.push_back(kind == NormKind::layer ? beta.get(c) : 0.0);
      if (with_sum) comparison.check("sum", i, sum, {s.back(), 5.0});
    }
    const reference::Row want = reference::norm(s, g, b, call.epsilon, kind);
    for (std::int64_t c = 0; c < columns; ++c) {
      // A row of one element is a difference of equals, which epsilon alone keeps from 0/0.
      comparison.check("norm", row * columns + c, out, {want[reference::index(c)], 3.0}, 0.1);
    }
  }
  if (!out.guard_is_intact() || !sum.guard_is_intact()) {
    comparison.fail("norm wrote behind the last element");
  }
}

inline void test_activation(DType dtype, std::int64_t rows, std::int64_t columns,
                            Activation activation, bool gated, const CpuOptions& cpu,
                            Comparison& comparison) {
  const std::int64_t width = gated ? 2 * columns : columns;
  const Buffer x = random_buffer(dtype, rows * width, 6, 8), bias = random_buffer(dtype, width, 7);
  Buffer out(dtype, rows * columns);
  activation_rows({x.data(), bias.data(), out.data(), rows, columns, activation, gated, dtype},
                  cpu);
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    const std::int64_t c = i % columns, at = i / columns * width + c;
    const double value = x.get(at) + bias.get(c);
    const double gate = gated ? x.get(at + columns) + bias.get(c + columns) : value;
    const double f = reference::activation(activation, gate);
    comparison.check("activation", i, out,
                     {gated ? value * f : f, gated ? std::fabs(value * gate) : std::fabs(gate)},
                     dtype == DType::f32 ? 0.0 : 0.1);
  }
  if (!out.guard_is_intact()) comparison.fail("activation wrote behind the last element");
}

struct AttentionSizes {
  std::int64_t batch, heads, kv_heads, queries, keys, head_size;
};

// With everything: a mask that forbids all to one query of each sequence, ALiBi, a window, heads
// that share keys. The cache has room for more keys than there are.
inline void test_attention(DType dtype, const AttentionSizes& z, bool causal, std::int64_t window,
                           const CpuOptions& cpu, Comparison& comparison) {
  const std::int64_t room = z.keys + 3;
  const double infinity = std::numeric_limits<double>::infinity();
  const Buffer q = random_buffer(dtype, z.batch * z.queries * z.heads * z.head_size, 8, 2);
  const Buffer k = random_buffer(dtype, z.batch * z.kv_heads * room * z.head_size, 9, 2);
  const Buffer v = random_buffer(dtype, z.batch * z.kv_heads * room * z.head_size, 10);
  Buffer mask = random_buffer(dtype, z.batch * z.queries * z.keys, 11);
  const Buffer alibi = random_buffer(dtype, z.heads * z.keys, 12);
  for (std::int64_t b = 0; b < z.batch; ++b) {
    for (std::int64_t key = 0; key < z.keys; ++key) {
      mask.set((b * z.queries + z.queries / 2) * z.keys + key, -infinity);
    }
  }
  Buffer out(dtype, z.batch * z.queries * z.heads * z.head_size);
  CachedAttention call{};
  call.query = q.data();
  call.key = k.data();
  call.value = v.data();
  call.out = out.data();
  call.query_strides =
      call.out_strides = {z.queries * z.heads * z.head_size, z.head_size, z.heads * z.head_size};
  call.key_strides =
      call.value_strides = {z.kv_heads * room * z.head_size, room * z.head_size, z.head_size};
  call.batch = z.batch;
  call.heads = z.heads;
  call.kv_heads = z.kv_heads;
  call.queries = z.queries;
  call.keys = z.keys;
  call.head_size = z.head_size;
  call.scale = 0.25;
  call.terms = {mask.data(), {z.queries * z.keys, 0, z.keys}, alibi.data(), {0, z.keys, 0}, causal,
                window};
  call.dtype = dtype;
  cached_attention(call, cpu);
  for (std::int64_t b = 0; b < z.batch; ++b) {
    for (std::int64_t h = 0; h < z.heads; ++h) {
      for (std::int64_t s = 0; s < z.queries; ++s) {
        const std::int64_t at = ((b * z.queries + s) * z.heads + h) * z.head_size;
        const std::int64_t cache = (b * z.kv_heads + h / (z.heads / z.kv_heads)) * room;
        reference::Row scores(reference::index(z.keys), -infinity);
        for (std::int64_t key = 0; key < z.keys; ++key) {
          if (!reference::is_seen(z.keys - z.queries + s, key, causal, window)) continue;
          double dot = 0.0;
          for (std::int64_t d = 0; d < z.head_size; ++d) {
            dot += q.get(at + d) * k.get((cache + key) * z.head_size + d);
          }
          scores[reference::index(key)] = dot * call.scale +
                                          mask.get((b * z.queries + s) * z.keys + key) +
                                          alibi.get(h * z.keys + key);
        }
        const reference::Row weights = reference::softmax(scores);
        for (std::int64_t d = 0; d < z.head_size; ++d) {
          double want = 0.0;
          for (std::int64_t key = 0; key < z.keys; ++key) {
            want += weights[reference::index(key)] * v.get((cache + key) * z.head_size + d);
          }
          comparison.check("attention", at + d, out, {want, 1.0},
                           dtype == DType::f32 ? kSums : 0.1);
        }
      }
    }
  }
  if (!out.guard_is_intact()) comparison.fail("attention wrote behind the last element");
}

inline void test_softmax(DType dtype, std::int64_t heads, std::int64_t queries, std::int64_t keys,
                         bool causal, std::int64_t window, const CpuOptions& cpu,
                         Comparison& comparison) {
  const Buffer x = random_buffer(dtype, heads * queries * keys, 13, 6),
               mask = random_buffer(dtype, keys, 14);
  Buffer out(dtype, heads * queries * keys);
  softmax_rows({x.data(),
                out.data(),
                1,
                heads,
                queries,
                keys,
                0.5,
                {mask.data(), {0, 0, 0}, nullptr, {}, causal, window},
                dtype},
               cpu);
  for (std::int64_t row = 0; row < heads * queries; ++row) {
    reference::Row scores(reference::index(keys), -std::numeric_limits<double>::infinity());
    for (std::int64_t key = 0; key < keys; ++key) {
      if (reference::is_seen(keys - queries + row % queries, key, causal, window)) {
        scores[reference::index(key)] = x.get(row * keys + key) * 0.5 + mask.get(key);
      }
    }
    const reference::Row want = reference::softmax(scores);
    for (std::int64_t key = 0; key < keys; ++key) {
      comparison.check("softmax", row * keys + key, out, {want[reference::index(key)], 0.0},
                       dtype == DType::f32 ? kSums : 0.1);
    }
  }
  if (!out.guard_is_intact()) comparison.fail("softmax wrote behind the last element");
}

inline void test_rotary(DType dtype, std::int64_t heads, std::int64_t tokens,
                        std::int64_t head_size, std::int64_t rotary_dim, bool rotate_half,
                        const CpuOptions& cpu, Comparison& comparison) {
  const Buffer x = random_buffer(dtype, heads * tokens * head_size, 15);
  Buffer out = x;
  Rotary call{};
  call.x = out.data();
  call.strides = {0, tokens * head_size, head_size};
  call.batch = 1;
  call.heads = heads;
  call.tokens = tokens;
  call.head_size = head_size;
  call.rotary_dim = rotary_dim;
  call.offset = 1000;
  call.theta = 10000.0;
  call.rotate_half = rotate_half;
  call.dtype = dtype;
  rotary(call, cpu);
  for (std::int64_t row = 0; row < heads * tokens; ++row) {
    reference::Row head;
    for (std::int64_t d = 0; d < head_size; ++d) head.push_back(x.get(row * head_size + d));
    const reference::Row want =
        reference::rotary(head, rotary_dim, call.offset + row % tokens, call.theta, rotate_half);
    for (std::int64_t d = 0; d < head_size; ++d) {
      comparison.check("rotary", row * head_size + d, out, {want[reference::index(d)], 1.0});
    }
  }
  if (!out.guard_is_intact()) comparison.fail("rotary wrote behind the last element");
}

inline void test_sums(DType dtype, std::int64_t rows, std::int64_t columns, const CpuOptions& cpu,
                      Comparison& comparison) {
  const std::int64_t size = rows * columns;
  const Buffer residual = random_buffer(dtype, size, 16), hidden = random_buffer(dtype, size, 17),
               attention = random_buffer(dtype, size, 18), b = random_buffer(dtype, columns, 19),
               c = random_buffer(dtype, 2 * columns, 20);
  for (const bool scaled : {false, true}) {
    Buffer out = residual;
    residual_rows({out.data(), hidden.data(), attention.data(), c.data(), b.data(), rows, columns,
                   0.5, scaled, dtype},
                  cpu);
    for (std::int64_t i = 0; i < size; ++i) {
      comparison.check("residual", i, out,
                       {(residual.get(i) + b.get(i % columns) + c.get(i % columns)) * 0.5 +
                            attention.get(i) * (scaled ? 0.5 : 1.0) + hidden.get(i),
                        3.0});
    }
  }
  Buffer out = residual;
  moe_rows({out.data(), hidden.data(), c.data(), rows, columns, dtype}, cpu);
  for (std::int64_t i = 0; i < size; ++i) {
    comparison.check(
        "moe", i, out,
        {residual.get(i) * c.get(columns + i % columns) + hidden.get(i) * c.get(i % columns), 2.0});
  }
  std::vector<std::int8_t> q(reference::index(size));
  for (std::size_t i = 0; i < q.size(); ++i) {
    q[i] = static_cast<std::int8_t>(static_cast<int>(i * 37 % 256) - 128);
  }
  std::vector<float> scales(reference::index(rows));
  for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = 0.01f * static_cast<float>(i + 1);
  dequantize_rows({q.data(), scales.data(), out.data(), rows, columns, rows, dtype}, cpu);
  for (std::int64_t i = 0; i < size; ++i) {
    const double want = static_cast<double>(scales[reference::index(i / columns)]) *
                        static_cast<double>(q[reference::index(i)]);
    comparison.check("dequantize", i, out, {want, 0.0});
  }
  if (!out.guard_is_intact()) comparison.fail("moe or dequantize wrote behind the last element");
}

}  // namespace ds::transformer_inference

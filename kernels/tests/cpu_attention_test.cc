// The attention that the ops share, with what no one op has all of: tiles that there are and are
// not, causal order and windows with a backward, more queries than keys.

#include "cpu_attention.h"

#include <gtest/gtest.h>

#include <string>

#include "attention_reference.h"
#include "self_test.h"

namespace ds {
namespace {

struct Shape {
  std::int64_t queries, keys, dim;
  bool causal;
  std::int64_t window;
  std::int64_t tile;  // Of a layout; 0: none.
};

constexpr std::int64_t kSlices = 3;

// Every third tile is missing, and all of the first row of the last layout.
bool is_there(std::int64_t layout, std::int64_t i, std::int64_t j) {
  return (layout + i + 2 * j) % 3 != 0 && !(layout == kSlices - 1 && i == 0);
}

attention::Tiles tiles_of(const Shape& shape) {
  attention::Tiles tiles;
  tiles.size = shape.tile;
  tiles.layouts = kSlices;
  const std::int64_t rows = (shape.queries + shape.tile - 1) / shape.tile;
  const std::int64_t columns = (shape.keys + shape.tile - 1) / shape.tile;
  tiles.row_begin = tiles.column_begin = {0};
  for (std::int64_t layout = 0; layout < kSlices; ++layout) {
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < columns; ++j) {
        if (is_there(layout, i, j)) tiles.columns.push_back(j);
      }
      tiles.row_begin.push_back(static_cast<std::int64_t>(tiles.columns.size()));
    }
    for (std::int64_t j = 0; j < columns; ++j) {
      for (std::int64_t i = 0; i < rows; ++i) {
        if (is_there(layout, i, j)) tiles.rows.push_back(i);
      }
      tiles.column_begin.push_back(static_cast<std::int64_t>(tiles.rows.size()));
    }
  }
  return tiles;
}

struct Case {
  explicit Case(const Shape& s, const CpuOptions& cpu) : shape(s) {
    Random random(1);
    for (Buffer* b : {&q, &k, &v, &grad}) {
      for (std::int64_t i = 0; i < kSlices * rows(b) * s.dim; ++i) b->set(i, random.next());
    }
    attention::Problem p;
    p.slices = {1, 1, kSlices};
    p.queries = s.queries;
    p.keys = s.keys;
    p.dim = s.dim;
    p.scale = 0.3;
    p.q = of(q), p.k = of(k), p.v = of(v), p.out = of(out);
    p.lse = {lse.data(), {0, 0, s.queries}, 0};
    p.causal = s.causal;
    p.window = s.window;
    attention::Tiles tiles;
    if (s.tile > 0) {
      tiles = tiles_of(s);
      p.tiles = &tiles;
    }
    attention::Gradients g;
    g.out = of(grad), g.q = of(grad_q), g.k = of(grad_k), g.v = of(grad_v);
    g.delta = {delta.data(), {0, 0, s.queries}, 0};
    attention::forward<false>(p, cpu);
    attention::backward<false>(p, g, cpu);
  }

  std::int64_t rows(const Buffer* b) const {
    return b == &k || b == &v || b == &grad_k || b == &grad_v ? shape.keys : shape.queries;
  }
  attention::Rows of(Buffer& b) { return {b.data(), {0, 0, rows(&b) * shape.dim}, shape.dim}; }

  void compare(Comparison& c) const {
    for (std::int64_t slice = 0; slice < kSlices; ++slice) {
      AttentionReference want(shape.queries, shape.keys, shape.dim, 0.3);
      const auto fill = [&](std::vector<double>& to, const Buffer& from) {
        for (std::size_t i = 0; i < to.size(); ++i) {
          to[i] = from.get(slice * rows(&from) * shape.dim + static_cast<std::int64_t>(i));
        }
      };
      fill(want.q, q), fill(want.k, k), fill(want.v, v), fill(want.grad, grad);
      for (std::int64_t i = 0; i < shape.queries; ++i) {
        for (std::int64_t j = 0; j < shape.keys; ++j) {
          const std::int64_t position = shape.keys - shape.queries + i;
          const bool seen = (!shape.causal || j <= position) &&
                            (shape.window == 0 || j > position - shape.window) &&
                            (shape.tile == 0 || is_there(slice, i / shape.tile, j / shape.tile));
          if (!seen) want.bias[static_cast<std::size_t>(i * shape.keys + j)] = -INFINITY;
        }
      }
      want.compute();
      const auto all = [&](const char* name, const Buffer& got, const std::vector<Expected>& wanted,
                           bool gradient) {
        const auto first = slice * static_cast<std::int64_t>(wanted.size());
        for (std::size_t i = 0; i < wanted.size(); ++i) {
          c.check(name, first + static_cast<std::int64_t>(i), got, wanted[i],
                  attention_ulp(DType::f32, gradient));
        }
      };
      all("out", out, want.out, false), all("lse", lse, want.lse, false);
      all("grad_q", grad_q, want.grad_q, true);
      all("grad_k", grad_k, want.grad_k, true), all("grad_v", grad_v, want.grad_v, true);
    }
    for (const Buffer* b : {&out, &lse, &delta, &grad_q, &grad_k, &grad_v}) {
      if (!b->guard_is_intact()) c.fail("wrote behind the last element");
    }
  }
  bool operator==(const Case& other) const {
    return out == other.out && lse == other.lse && grad_q == other.grad_q &&
           grad_k == other.grad_k && grad_v == other.grad_v;
  }

  Shape shape;
  Buffer q{DType::f32, kSlices*shape.queries*shape.dim}, grad = q, out = q, grad_q = q;
  Buffer k{DType::f32, kSlices*shape.keys*shape.dim}, v = k, grad_k = k, grad_v = k;
  Buffer lse{DType::f32, kSlices*shape.queries}, delta = lse;
};

constexpr Shape kShapes[] = {{100, 100, 24, true, 0, 0},    {300, 300, 16, true, 90, 0},
                             {130, 70, 16, true, 0, 0},     {200, 40, 16, true, 0, 0},
                             {3, 150, 32, true, 100, 0},    {100, 200, 16, false, 30, 0},
                             {100, 90, 16, false, 0, 16},   {200, 200, 24, true, 0, 32},
                             {128, 256, 16, false, 0, 128}, {40, 40, 16, false, 0, 64}};

TEST(CpuAttention, Layouts_order_and_windows_have_the_results_and_gradients_of_their_masks) {
  for (const CpuIsa isa : runnable_isas()) {
    for (const Shape& s : kShapes) {
      Comparison comparison;
      Case(s, {1, isa}).compare(comparison);
      EXPECT_TRUE(comparison.ok())
          << isa_name(isa) << ", " << s.queries << " queries, " << s.keys << " keys, tiles of "
          << s.tile << ", window " << s.window << ": " << comparison.failure();
    }
  }
}

// Threads decide how many tiles of queries are a unit.
TEST(CpuAttention, Any_number_of_threads_gives_the_same_bits_for_every_shape) {
  for (const Shape& s : kShapes) {
    const Case want(s, {1, CpuIsa::scalar});
    for (const int threads : {2, 5}) {
      EXPECT_TRUE(Case(s, {threads, CpuIsa::automatic}) == want)
          << s.queries << " queries, " << s.keys << " keys, " << threads << " threads";
    }
  }
}

TEST(Dropout, Sixty_four_factors_at_a_time_are_those_of_eight) {
  const DropoutPlan plan = plan_dropout(0.3, {7, (std::uint64_t{1} << 40) + 3, nullptr});
  // Over the end of 32 bits.
  for (std::int64_t group = 0xfffffff0; group < 0x100000010; group += 3) {
    float many[64], few[8];
    dropout_factors_of_64(plan, group, many);
    for (int i = 0; i < 8; ++i) {
      dropout_factors(plan, group + i, few);
      for (int t = 0; t < 8; ++t) ASSERT_EQ(many[8 * i + t], few[t]) << group << ", " << i;
    }
  }
}

}  // namespace
}  // namespace ds

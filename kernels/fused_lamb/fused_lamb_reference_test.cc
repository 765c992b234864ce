// What defines the answer of fused_lamb, against numbers worked out by hand, and the order of work.

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "lamb_list.h"
#include "reference.h"

namespace ds {
namespace {

Buffer buffer(const std::vector<double>& values, DType dtype = DType::f32) {
  Buffer b(dtype, static_cast<std::int64_t>(values.size()));
  for (std::size_t i = 0; i < values.size(); ++i) b.set(static_cast<std::int64_t>(i), values[i]);
  return b;
}

TEST(FusedLambReference, The_ratio_is_of_the_norms_of_the_whole_tensor) {
  FusedLambOptions o{1, 0.5, 0.9, 0.999, 0.0, 0.0, 0.01, 10.0, true};
  // The first direction is the sign of the gradient: ‖u‖ = 2, ‖p‖ = 5·2.
  const Buffer p = buffer({5, 5, 5, 5}), g = buffer({1, -2, 3, -4}), zero = buffer({0, 0, 0, 0});
  const FusedLambExpected want = fused_lamb_reference(p, g, zero, zero, 4, o);
  EXPECT_NEAR(want.trust_ratio, 5.0, 1e-9);
  EXPECT_NEAR(want.param[0].value, 2.5, 1e-9);
  EXPECT_NEAR(want.param[1].value, 7.5, 1e-9);
  EXPECT_NEAR(want.exp_avg[2].value, 0.3, 1e-12);
  EXPECT_NEAR(want.exp_avg_sq[2].value, 0.009, 1e-12);
  o.max_ratio = 2.0;
  EXPECT_EQ(fused_lamb_reference(p, g, zero, zero, 4, o).trust_ratio, 2.0);
  o.min_ratio = 6.0;
  o.max_ratio = 7.0;
  EXPECT_EQ(fused_lamb_reference(p, g, zero, zero, 4, o).trust_ratio, 6.0);
}

TEST(FusedLambReference, The_ratio_is_1_where_a_norm_is_0) {
  FusedLambOptions o;
  o.min_ratio = 0.5;
  o.eps = 1.0;
  const Buffer zero = buffer({0, 0}), one = buffer({1, 1});
  EXPECT_EQ(fused_lamb_reference(zero, one, zero, zero, 2, o).trust_ratio, 1.0);
  EXPECT_EQ(fused_lamb_reference(one, zero, zero, zero, 2, o).trust_ratio, 1.0);
}

TEST(FusedLambReference, Decay_is_part_of_the_direction_and_of_its_norm) {
  FusedLambOptions o{1, 0.5, 0.9, 0.999, 0.0, 0.5, 0.0, 10.0, true};
  const Buffer p = buffer({4}), g = buffer({1}), zero = buffer({0});
  const FusedLambExpected want = fused_lamb_reference(p, g, zero, zero, 1, o);
  EXPECT_NEAR(want.trust_ratio, 4.0 / 3.0, 1e-9);
  EXPECT_NEAR(want.param[0].value, 4 - 0.5 * 4.0, 1e-9);
}

// Chunks of the rows, and for each row the tensor's chunks.
std::vector<WorkTensor> tensors_of(const std::vector<std::int64_t>& chunks) {
  std::vector<WorkTensor> tensors;
  std::uintptr_t base = 1;
  for (const std::int64_t n : chunks) {
    const auto at = [&](int run) {
      return reinterpret_cast<void*>((base << 40) + (static_cast<std::uintptr_t>(run) << 36));
    };
    tensors.push_back({at(0),
                       at(1),
                       {at(2), at(3)},
                       nullptr,
                       n * kLambChunk,
                       DType::f32,
                       DType::f32,
                       DType::f32,
                       DType::bf16});
    ++base;
  }
  return tensors;
}

void check_order(const LambList& list) {
  for (const LambGroup& group : list.groups) {
    std::map<std::uint32_t, std::set<std::uint32_t>> a, b;
    for (std::size_t i = 0; i < group.items; ++i) {
      const LambItem& item = list.items[group.first_item + i];
      const std::uint32_t chunks = list.rows[item.row].chunks;
      ASSERT_LT(item.chunk, chunks);
      const auto pass = static_cast<LambPass>(item.pass);
      if (pass == LambPass::both) {
        ASSERT_EQ(chunks, 1u);
      }
      if (pass != LambPass::b) {
        ASSERT_TRUE(a[item.row].insert(item.chunk).second) << "twice in pass A";
      }
      if (pass != LambPass::a) {
        ASSERT_TRUE(b[item.row].insert(item.chunk).second) << "twice in pass B";
        // Else blocks could wait for one that nobody holds.
        ASSERT_EQ(a[item.row].size(), chunks) << "pass B before the end of pass A";
      }
    }
    ASSERT_EQ(a.size(), group.rows);
    for (std::size_t row = group.first_row; row < group.first_row + group.rows; ++row) {
      const auto r = static_cast<std::uint32_t>(row);
      ASSERT_EQ(a[r].size(), list.rows[row].chunks);
      ASSERT_EQ(b[r].size(), list.rows[row].chunks);
    }
  }
}

TEST(LambList, Every_chunk_is_passed_twice_and_pass_B_waits_only_for_lower_tickets) {
  for (const std::vector<std::int64_t>& chunks :
       std::vector<std::vector<std::int64_t>>{{1},
                                              {2},
                                              {5000},
                                              {1, 2, 1},
                                              {600, 600},
                                              {150, 150, 150, 1, 3000, 5, 6, 700, 10},
                                              std::vector<std::int64_t>(500, 7)}) {
    check_order(make_lamb_list(tensors_of(chunks), "f"));
  }
}

TEST(LambList, Sums_of_different_rows_lie_apart_and_groups_are_of_one_type) {
  std::vector<WorkTensor> tensors = tensors_of({5, 6, 7, 8});
  tensors[1].param_dtype = DType::bf16;
  tensors[3].size = 0;
  const LambList list = make_lamb_list(tensors, "f");
  ASSERT_EQ(list.groups.size(), 2u);
  EXPECT_EQ(list.groups[0].rows, 2u);
  EXPECT_EQ(list.groups[0].partials, 12u);
  EXPECT_EQ(list.rows[1].first_partial, 5u);
  EXPECT_EQ(list.rows[1].index, 2u);
  EXPECT_EQ(list.groups[1].first_row, 2u);
  EXPECT_EQ(list.rows[2].first_partial, 0u);
  EXPECT_EQ(list.rows[2].index, 1u);
  check_order(list);
}

TEST(LambList, A_small_tensor_is_one_item) {
  const LambList list = make_lamb_list(tensors_of({1, 4, 5}), "f");
  EXPECT_EQ(list.rows[0].chunks, 1u);
  EXPECT_EQ(list.rows[1].chunks, 1u);
  EXPECT_EQ(list.rows[2].chunks, 5u);
  EXPECT_EQ(list.items.size(), 1u + 1u + 2u * 5u);
}

TEST(FusedLambReference, Eps_can_count_as_a_part_of_v) {
  FusedLambOptions options;
  options.eps = 0.25;
  options.eps_inside_sqrt = true;
  options.bias_correction = false;
  options.beta1 = options.beta2 = 0.5;
  options.lr = 1.0;
  Buffer p(DType::f32, 1), g(DType::f32, 1), m(DType::f32, 1), v(DType::f32, 1);
  p.set(0, 3.0);
  g.set(0, 2.0);
  m.set(0, 0.0);
  v.set(0, 0.0);
  // m = 1, v = 2, u = 1/√2.25, r = 4.5, and p - r·u = 0.
  const FusedLambExpected want = fused_lamb_reference(p, g, m, v, 1, options);
  EXPECT_NEAR(want.trust_ratio, 4.5, 1e-12);
  EXPECT_NEAR(want.param[0].value, 0.0, 1e-12);
}

}  // namespace
}  // namespace ds

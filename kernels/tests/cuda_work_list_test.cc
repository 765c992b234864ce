// The host code that cuts lists of tensors into work for a GPU.

#include "cuda_work_list.h"

#include <gtest/gtest.h>

#include <numeric>

namespace ds {
namespace {

constexpr OptimizerNames kNames{"f", {"m", "v"}};

// Runs of `size` elements at an address that is `offset` elements behind a multiple of 256 bytes.
WorkTensor tensor(std::uintptr_t base, std::int64_t size, int offset = 0, DType param = DType::f32,
                  DType grad = DType::f32, DType state = DType::f32) {
  const auto at = [&](int run, DType dtype) {
    return reinterpret_cast<char*>((base << 40) + (static_cast<std::uintptr_t>(run) << 36)) +
           offset * dtype_size(dtype);
  };
  return {at(0, param), at(1, grad), {at(2, state), at(3, state)}, nullptr, size, param, grad,
          state,        DType::bf16};
}

// How often the kernel, which takes an item as cuda_optimizer.cuh does, meets each element.
std::vector<int> visits(const WorkList& list, const WorkGroup& group, std::size_t row_index) {
  const WorkRow& row = list.rows[row_index];
  const std::int64_t chunk_size = chunk_of(group.param_dtype, group.state_dtype);
  std::vector<int> count(static_cast<std::size_t>(row.size));
  for (std::uint32_t i = 0; i < group.items; ++i) {
    if (list.items[group.first_item + i] != row_index) continue;
    const std::uint32_t chunk = i - row.first_item;
    const std::int64_t begin = row.head + chunk * chunk_size;
    const std::int64_t size = std::min(chunk_size, row.size - begin);
    EXPECT_GE(size, 0);
    if (chunk == 0) {
      for (std::uint32_t e = 0; e < row.head; ++e) ++count[e];
    }
    for (std::int64_t e = 0; e < size; ++e) ++count[static_cast<std::size_t>(begin + e)];
  }
  return count;
}

TEST(WorkList, Every_element_is_met_once_at_any_size_and_offset) {
  using Types = std::pair<DType, DType>;
  for (const auto& [param, state] : {Types{DType::f32, DType::f32}, Types{DType::f16, DType::f32},
                                     Types{DType::bf16, DType::bf16}}) {
    std::vector<WorkTensor> tensors;
    std::uintptr_t base = 1;
    for (const std::int64_t size :
         {1, 2, 3, 7, 8, 31, 32, 33, 2047, 2048, 2049, 2055, 4096, 4099, 8192, 8199, 20000}) {
      for (const int offset : {0, 1, 3, 4, 7}) {
        tensors.push_back(tensor(base++, size, offset, param, DType::f16, state));
      }
    }
    const WorkList list = make_work_list(tensors, "f");
    ASSERT_EQ(list.groups.size(), 1u);
    ASSERT_EQ(list.rows.size(), tensors.size());
    for (std::size_t row = 0; row < list.rows.size(); ++row) {
      for (const int count : visits(list, list.groups[0], row)) ASSERT_EQ(count, 1) << row;
    }
    EXPECT_EQ(list.items.size(), list.groups[0].items);
  }
}

TEST(WorkList, Runs_with_a_common_boundary_have_a_head_before_it_and_others_are_read_singly) {
  const auto row_of = [](const WorkTensor& t) { return make_work_list({t}, "f").rows.at(0); };
  EXPECT_EQ(row_of(tensor(1, 100, 0)).head, 0u);
  EXPECT_EQ(row_of(tensor(1, 100, 1)).head, 3u);
  EXPECT_EQ(row_of(tensor(1, 100, 4)).head, 0u);
  // Four f32 are 16 bytes and four f16 are 8: only the eighth element is a boundary of both.
  EXPECT_EQ(row_of(tensor(1, 100, 4, DType::f16)).head, 4u);
  EXPECT_EQ(row_of(tensor(1, 2, 4, DType::f16)).head, 2u);
  EXPECT_EQ(row_of(tensor(1, 100, 4, DType::f16)).is_vector, 1u);
  WorkTensor askew = tensor(1, 100, 0);
  askew.grad = static_cast<const char*>(askew.grad) + 4;
  EXPECT_EQ(row_of(askew).is_vector, 0u);
  EXPECT_EQ(row_of(askew).head, 0u);
  // A copy takes part too.
  WorkTensor copied = tensor(1, 100, 0);
  copied.copy = reinterpret_cast<void*>((std::uintptr_t{1} << 50) + 2);
  EXPECT_EQ(row_of(copied).is_vector, 0u);
}

TEST(WorkList, Types_are_grouped_in_the_order_of_their_first_tensors_and_empty_ones_are_left_out) {
  const WorkList list = make_work_list(
      {tensor(1, 0), tensor(2, 5000), tensor(3, 10, 0, DType::bf16), tensor(4, 0, 0, DType::f16),
       tensor(5, 3000), tensor(6, 1, 0, DType::bf16, DType::bf16)},
      "f");
  ASSERT_EQ(list.groups.size(), 2u);
  EXPECT_EQ(list.groups[0].param_dtype, DType::f32);
  EXPECT_EQ(list.groups[0].items, 5u);
  EXPECT_EQ(list.groups[1].param_dtype, DType::bf16);
  EXPECT_EQ(list.groups[1].items, 2u);
  EXPECT_EQ(list.groups[1].first_item, 5u);
  EXPECT_EQ(list.items, (std::vector<std::uint32_t>{0, 0, 0, 1, 1, 2, 3}));
  EXPECT_EQ(list.rows[1].first_item, 3u);
  EXPECT_EQ(list.rows[3].first_item, 1u);
  EXPECT_TRUE(make_work_list({}, "f").groups.empty());
  EXPECT_TRUE(make_work_list({tensor(1, 0)}, "f").groups.empty());
}

TEST(WorkList, More_than_32_bits_of_elements_are_cut_without_overflow) {
  const std::int64_t size = (std::int64_t{1} << 33) + 5;
  const WorkList list = make_work_list({tensor(1, 3), tensor(2, size)}, "f");
  EXPECT_EQ(list.groups[0].items, 1u + (1u << 22) + 1u);
  const WorkRow& row = list.rows[1];
  const std::int64_t last = list.groups[0].items - 1 - row.first_item;
  EXPECT_EQ(row.size - last * kChunk, 5);
}

TEST(WorkList, What_would_touch_wrong_memory_is_refused_with_list_and_index) {
  const auto refused = [](std::vector<WorkTensor> tensors) -> std::string {
    try {
      check_work(tensors, kNames);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refused({tensor(1, 8), tensor(2, 8)}), "");
  EXPECT_EQ(refused({tensor(1, 8), tensor(1, 8)}), "f: params[0] and params[1] share memory");
  WorkTensor t = tensor(1, 8);
  t.states[1] = nullptr;
  EXPECT_EQ(refused({tensor(2, 8), t}), "f: tensor 1: v is null");
  t = tensor(1, 8);
  t.grad = static_cast<const char*>(t.grad) + 2;
  EXPECT_EQ(refused({t}), "f: tensor 0: grads is not aligned to its elements");
  t = tensor(1, -1);
  EXPECT_EQ(refused({t}), "f: tensor 0: the size is -1");
  t = tensor(1, 8);
  t.copy = t.param;
  EXPECT_NE(refused({t}).find("share memory"), std::string::npos);
  t.copy_dtype = DType::f32;
  EXPECT_EQ(refused({t}), "f: tensor 0: a copy has 16 bits");
  EXPECT_EQ(refused({tensor(1, 8, 0, DType::f32, DType::f32, DType::bf16)}), "");
  EXPECT_NE(refused({tensor(1, 8, 0, DType::f16, DType::f16, DType::bf16)}).find("the state is"),
            std::string::npos);
}

TEST(WorkList, Lists_are_the_same_if_every_byte_is) {
  const std::vector<WorkTensor> a = {tensor(1, 8), tensor(2, 9)};
  std::vector<WorkTensor> b = a;
  EXPECT_TRUE(same_list(a, b));
  b[1].size = 10;
  EXPECT_FALSE(same_list(a, b));
  b = a;
  b[0].grad_dtype = DType::bf16;
  EXPECT_FALSE(same_list(a, b));
  b.pop_back();
  EXPECT_FALSE(same_list(a, b));
  EXPECT_TRUE(same_list({}, {}));
}

}  // namespace
}  // namespace ds

// What defines the answers of random_ltd, and what it refuses.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "plan.h"
#include "reference.h"

namespace ds {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(RandomLtdReference, Sorts_each_row_by_itself) {
  const std::vector<std::int32_t> ids{3, 0, 2, 1, 7, 5};
  std::vector<std::int32_t> sorted(6);
  reference::token_sort({ids.data(), sorted.data(), 2, 3, 8});
  EXPECT_THAT(sorted, ElementsAre(0, 2, 3, 1, 5, 7));
}

// Two sequences of three tokens of two bytes, batch first or tokens first.
TokenRows rows_of(std::vector<std::uint8_t>& all, std::vector<std::uint8_t>& kept,
                  const std::vector<std::int32_t>& indices, bool batch_first) {
  return {
      all.data(),          kept.data(),         indices.data(),     2, 3, 2, 2, batch_first ? 6 : 2,
      batch_first ? 2 : 4, batch_first ? 4 : 2, batch_first ? 2 : 4};
}

TEST(RandomLtdReference, Gathers_in_both_layouts) {
  std::vector<std::uint8_t> all{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, kept(8);
  const std::vector<std::int32_t> indices{0, 2, 1, 2};
  reference::token_gather(rows_of(all, kept, indices, true));
  EXPECT_THAT(kept, ElementsAre(0, 1, 4, 5, 8, 9, 10, 11));
  reference::token_gather(rows_of(all, kept, indices, false));
  EXPECT_THAT(kept, ElementsAre(0, 1, 6, 7, 8, 9, 10, 11));
}

TEST(RandomLtdReference, Scatters_and_leaves_the_rest) {
  std::vector<std::uint8_t> all(12, 99), kept{1, 1, 2, 2, 3, 3, 4, 4};
  const std::vector<std::int32_t> indices{0, 2, 1, 2};
  reference::token_scatter(rows_of(all, kept, indices, true));
  EXPECT_THAT(all, ElementsAre(1, 1, 99, 99, 2, 2, 99, 99, 3, 3, 4, 4));
}

TEST(RandomLtdReference, A_token_that_does_not_exist_is_zeros_and_is_never_written) {
  std::vector<std::uint8_t> all(12, 99), kept(8, 1);
  const std::vector<std::int32_t> indices{-1, 3, 0, 1};
  reference::token_gather(rows_of(all, kept, indices, true));
  EXPECT_THAT(kept, ElementsAre(0, 0, 0, 0, 99, 99, 99, 99));
  kept.assign(8, 1);
  reference::token_scatter(rows_of(all, kept, indices, true));
  EXPECT_THAT(all, ElementsAre(99, 99, 99, 99, 99, 99, 1, 1, 1, 1, 99, 99));
}

TEST(RandomLtdReference, Each_layer_has_its_own_mask) {
  // A sequence of three; two layers of two kept tokens.
  const std::vector<std::uint8_t> mask{0, 1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<std::int32_t> indices{0, 1, 0, 2};
  std::vector<std::uint8_t> out(8);
  reference::mask_gather({mask.data(), indices.data(), out.data(), 2, 1, 3, 2, 1});
  EXPECT_THAT(out, ElementsAre(0, 1, 3, 4, 0, 2, 6, 8));
}

template <class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(RandomLtdPlan, What_does_not_fit_is_refused) {
  std::int32_t ids[4] = {};
  const auto sort = [&](const TokenSort& s) { return refusal([&] { random_ltd::check(s); }); };
  EXPECT_EQ(sort({ids, ids + 2, 1, 2, 8}), "");
  EXPECT_THAT(sort({nullptr, ids, 1, 2, 8}), HasSubstr("ids is null"));
  EXPECT_THAT(sort({ids, ids + 2, -1, 2, 8}), HasSubstr("negative"));
  EXPECT_THAT(sort({ids, ids + 2, 1, 2, std::int64_t{1} << 31}), HasSubstr("32 bits"));
  EXPECT_EQ(sort({ids, ids, 1, 2, kTokenSortInPlace}), "");
  EXPECT_THAT(sort({ids, ids, 1, 2, kTokenSortInPlace + 1}), HasSubstr("another place"));
  std::uint8_t bytes[64] = {};
  const auto rows = [&](const TokenRows& r) {
    return refusal([&] { random_ltd::check(r, "token_gather"); });
  };
  EXPECT_EQ(rows({bytes, bytes + 32, ids, 1, 4, 4, 8, 32, 8, 32, 8}), "");
  EXPECT_THAT(rows({bytes, nullptr, ids, 1, 4, 4, 8, 32, 8, 32, 8}),
              HasSubstr("kept_rows is null"));
  EXPECT_THAT(rows({bytes, bytes + 32, nullptr, 1, 4, 5, 8, 32, 8, 32, 8}),
              HasSubstr("the first 5 of 4"));
  EXPECT_THAT(rows({bytes, bytes + 32, ids, 1 << 20, 4, 1 << 20, 8, 32, 8, 32, 8}),
              HasSubstr("more than 2^31 - 1 kept"));
  const auto mask = [&](const MaskGather& g) { return refusal([&] { random_ltd::check(g); }); };
  EXPECT_EQ(mask({bytes, ids, bytes, 1, 1, 4, 2, 2}), "");
  EXPECT_THAT(mask({bytes, ids, bytes, 1, 1, 4, 2, 3}), HasSubstr("1, 2, 4 or 8 bytes"));
  EXPECT_THAT(mask({bytes + 1, ids, bytes, 1, 1, 4, 2, 4}), HasSubstr("not aligned"));
}

TEST(RandomLtdPlan, Nothing_to_do_is_no_error) {
  EXPECT_FALSE(random_ltd::check(TokenSort{nullptr, nullptr, 0, 5, 8}));
  EXPECT_FALSE(random_ltd::check(TokenSort{nullptr, nullptr, 5, 0, 8}));
  EXPECT_FALSE(random_ltd::check(TokenRows{nullptr, nullptr, nullptr, 3, 4, 0, 8, 32, 8, 0, 8},
                                 "token_gather"));
  EXPECT_FALSE(random_ltd::check(MaskGather{nullptr, nullptr, nullptr, 1, 0, 4, 2, 2}));
}

TEST(RandomLtdPlan, Words_are_as_wide_as_all_rows_and_starts_allow) {
  alignas(16) std::uint8_t bytes[128];
  const auto word = [&](int at, std::int64_t row, std::int64_t stride) {
    return random_ltd::word_bytes(
        {bytes + at, bytes + 64, nullptr, 2, 2, 2, row, 4 * stride, stride, 2 * row, row});
  };
  EXPECT_EQ(word(0, 16, 16), 16);
  EXPECT_EQ(word(8, 16, 16), 8);
  EXPECT_EQ(word(0, 16, 20), 4);
  EXPECT_EQ(word(0, 6, 6), 2);
  EXPECT_EQ(word(1, 16, 16), 1);
}

}  // namespace
}  // namespace ds

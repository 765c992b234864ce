// random_ltd on the CPU, against its definition, byte by byte.

#include "random_ltd.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "reference.h"
#include "self_test.h"

namespace ds {
namespace {

std::vector<std::uint8_t> random_bytes(std::int64_t size, std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(size));
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(generator());
  return bytes;
}

std::vector<std::int32_t> sample(std::int64_t rows, std::int64_t kept, std::int64_t tokens) {
  std::mt19937 generator(static_cast<std::uint32_t>(rows * 7 + kept));
  std::vector<std::int32_t> all(static_cast<std::size_t>(tokens)), ids;
  std::iota(all.begin(), all.end(), 0);
  for (std::int64_t row = 0; row < rows; ++row) {
    std::shuffle(all.begin(), all.end(), generator);
    ids.insert(ids.end(), all.begin(), all.begin() + kept);
  }
  return ids;
}

void expect_sorted(std::vector<std::int32_t> ids, std::int64_t rows, std::int64_t tokens) {
  const auto size = static_cast<std::int64_t>(ids.size()) / rows;
  std::vector<std::int32_t> want(ids.size()), sorted(ids.size());
  reference::token_sort({ids.data(), want.data(), rows, size, tokens});
  for (const int threads : {1, 2, 8}) {
    std::fill(sorted.begin(), sorted.end(), -7);
    token_sort({ids.data(), sorted.data(), rows, size, tokens}, CpuOptions{threads});
    ASSERT_EQ(sorted, want) << rows << " rows of " << size << " of " << tokens;
  }
  if (tokens > kTokenSortInPlace) return;
  token_sort({ids.data(), ids.data(), rows, size, tokens}, CpuOptions{});
  ASSERT_EQ(ids, want) << "in place: " << rows << " rows of " << size << " of " << tokens;
}

TEST(RandomLtd, Sorts_rows_of_any_length) {
  for (const std::int64_t tokens : {1, 31, 32, 33, 64, 65, 2048, 2049, 65536, 327680, 400001}) {
    for (const std::int64_t kept : {std::int64_t{1}, (tokens + 1) / 2, tokens}) {
      expect_sorted(sample(5, kept, tokens), 5, tokens);
    }
  }
}

TEST(RandomLtd, Sorts_what_is_no_set_of_tokens_too) {
  expect_sorted({3, 3, 1, 1, 0, 2, 1, 0}, 2, 4);
  expect_sorted({-5, 7, 3, 2, 100, -1, 2, 2}, 2, 4);
  std::vector<std::int32_t> ids = sample(6, 5000, 5000);
  ids[4999] = ids[0];  // Twice, found at the end of the first row;
  ids[7500] = 5001;    // too large, in the second;
  ids[29999] = -2000000000;
  expect_sorted(ids, 6, 5000);
  // Far apart.
  expect_sorted({2000000000, 5, 70, 69, 1, 0}, 1, 2000000001);
}

struct Layout {
  std::int64_t batch, tokens, kept, row_bytes;
  bool batch_first;
  int gap;    // Bytes between rows.
  int shift;  // Of the first.
};

void expect_rows(const Layout& l, const std::vector<std::int32_t>& indices) {
  const std::int64_t pitch = l.row_bytes + l.gap;
  std::vector<std::uint8_t> all = random_bytes(l.batch * l.tokens * pitch + l.shift, 1),
                            kept = random_bytes(l.batch * l.kept * pitch + l.shift, 2);
  const std::vector<std::uint8_t> all_before = all, kept_before = kept;
  const TokenRows call{all.data() + l.shift,
                       kept.data() + l.shift,
                       indices.data(),
                       l.batch,
                       l.tokens,
                       l.kept,
                       l.row_bytes,
                       l.batch_first ? l.tokens * pitch : pitch,
                       l.batch_first ? pitch : l.batch * pitch,
                       l.batch_first ? l.kept * pitch : pitch,
                       l.batch_first ? pitch : l.batch * pitch};
  reference::token_gather(call);
  const std::vector<std::uint8_t> gathered = kept;
  kept = kept_before;
  reference::token_scatter(call);
  const std::vector<std::uint8_t> scattered = all;
  for (const int threads : {1, 2, 3, 8}) {
    all = all_before;
    kept = kept_before;
    token_gather(call, CpuOptions{threads});
    ASSERT_TRUE(kept == gathered) << threads << " threads";
    kept = kept_before;
    token_scatter(call, CpuOptions{threads});
    ASSERT_TRUE(all == scattered) << threads << " threads";
  }
}

TEST(RandomLtd, Rows_of_any_size_layout_and_place_come_and_go_as_defined) {
  for (const std::int64_t batch : {1, 3, 9}) {
    for (const std::int64_t row : {1, 2, 31, 32, 33, 1024, 5000}) {
      for (const bool batch_first : {true, false}) {
        for (const int off : {0, 3}) {
          std::vector<std::int32_t> indices = sample(batch, 60, 101);
          indices[1] = -1;
          indices[7] = 101;
          indices[20] = indices[19];  // The last one wins.
          expect_rows({batch, 101, 60, row, batch_first, off, off}, indices);
        }
      }
    }
  }
}

TEST(RandomLtd, Without_indices_the_first_tokens_are_taken) {
  const std::vector<std::uint8_t> all = random_bytes(2 * 5 * 8, 3);
  std::vector<std::uint8_t> kept(2 * 3 * 8);
  token_gather(
      {const_cast<std::uint8_t*>(all.data()), kept.data(), nullptr, 2, 5, 3, 8, 40, 8, 24, 8},
      CpuOptions{});
  EXPECT_TRUE(std::equal(kept.begin(), kept.begin() + 24, all.begin()));
  EXPECT_TRUE(std::equal(kept.begin() + 24, kept.end(), all.begin() + 40));
}

template <class T>
void expect_masks(std::int64_t layers, std::int64_t batch, std::int64_t tokens, std::int64_t kept,
                  bool with_strangers) {
  std::vector<std::uint8_t> mask =
      random_bytes(batch * tokens * tokens * static_cast<std::int64_t>(sizeof(T)), 5);
  std::vector<std::int32_t> indices = sample(layers * batch, kept, tokens);
  if (with_strangers) {
    indices[0] = -1;
    indices.back() = static_cast<std::int32_t>(tokens);
  }
  const auto bytes = static_cast<std::size_t>(layers * batch * kept * kept) * sizeof(T);
  std::vector<std::uint8_t> want(bytes);
  MaskGather call{mask.data(), indices.data(), want.data(), layers, batch, tokens, kept, sizeof(T)};
  reference::mask_gather(call);
  for (const CpuIsa isa : runnable_isas()) {
    for (const int threads : {1, 2, 8}) {
      std::vector<std::uint8_t> out(bytes + 1, 0xA5);
      call.out = out.data();
      mask_gather(call, CpuOptions{threads, isa});
      ASSERT_EQ(out.back(), 0xA5);
      out.pop_back();
      ASSERT_TRUE(out == want) << isa_name(isa) << ", " << kept << " of " << tokens
                               << ", elements of " << sizeof(T);
    }
  }
}

TEST(RandomLtd, Masks_follow_the_indices_of_their_layer) {
  for (const std::int64_t tokens : {1, 32, 97}) {
    for (const std::int64_t kept : {std::int64_t{1}, (tokens + 1) / 2, tokens}) {
      for (const bool with_strangers : {false, true}) {
        expect_masks<std::uint8_t>(3, 2, tokens, kept, with_strangers);
        expect_masks<std::uint16_t>(3, 2, tokens, kept, with_strangers);
        expect_masks<std::uint32_t>(3, 2, tokens, kept, with_strangers);
        expect_masks<std::uint64_t>(3, 2, tokens, kept, with_strangers);
      }
    }
  }
  expect_masks<std::uint16_t>(2, 2, 700, 333, false);  // Enough for several threads.
}

TEST(RandomLtd, What_does_not_fit_is_refused_and_nothing_to_do_is_no_error) {
  std::int32_t ids[4] = {};
  EXPECT_THROW(token_sort({nullptr, ids, 1, 2, 8}, CpuOptions{}), std::invalid_argument);
  EXPECT_THROW(token_gather({ids, nullptr, ids, 1, 1, 1, 4, 4, 4, 4, 4}, CpuOptions{}),
               std::invalid_argument);
  EXPECT_THROW(mask_gather({ids, ids, ids, 1, 1, 2, 1, 3}, CpuOptions{}), std::invalid_argument);
  token_sort({nullptr, nullptr, 0, 5, 8}, CpuOptions{});
  token_scatter({nullptr, nullptr, nullptr, 3, 4, 0, 8, 32, 8, 0, 8}, CpuOptions{});
  mask_gather({nullptr, nullptr, nullptr, 1, 0, 4, 2, 2}, CpuOptions{});
  // No token: all of it is zeros.
  std::uint8_t kept[8] = {1, 1, 1, 1, 1, 1, 1, 1};
  token_gather({nullptr, kept, ids, 1, 0, 2, 4, 0, 4, 8, 4}, CpuOptions{});
  for (const std::uint8_t byte : kept) EXPECT_EQ(byte, 0);
}

TEST(RandomLtd, Self_test_is_right_and_without_a_name_it_is_the_processors) {
  char detail[200];
  EXPECT_EQ(ds_self_test_random_ltd(nullptr, detail, sizeof detail), DS_SELF_TEST_OK) << detail;
  EXPECT_NE(std::string(detail).find("6 functions"), std::string::npos) << detail;
}

}  // namespace
}  // namespace ds

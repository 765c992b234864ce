#include "utils.h"

#include <gtest/gtest.h>

#include <random>
#include <stdexcept>
#include <vector>

namespace ds {
namespace {

TEST(Utils, Flatten_of_any_pieces_is_their_concatenation_for_any_number_of_threads) {
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    std::vector<std::vector<unsigned char>> memory;
    std::vector<UtilsPiece> pieces;
    std::vector<unsigned char> expected;
    for (unsigned i = random() % 40; i > 0; --i) {
      memory.emplace_back(random() % (random() % 3 ? 70 : 300'000));
      for (unsigned char& byte : memory.back()) byte = static_cast<unsigned char>(random());
      expected.insert(expected.end(), memory.back().begin(), memory.back().end());
    }
    for (const auto& one : memory) {
      pieces.push_back({one.data(), static_cast<std::int64_t>(one.size())});
    }
    for (int threads : {0, 1, 2, 8}) {
      std::vector<unsigned char> got(expected.size() + 64, 0xA5);
      utils_flatten(got.data(), pieces.data(), pieces.size(), threads);
      for (std::size_t i = expected.size(); i < got.size(); ++i) ASSERT_EQ(got[i], 0xA5);
      got.resize(expected.size());
      ASSERT_EQ(got, expected);
    }
  }
}

TEST(Utils, Flatten_of_nothing_writes_nothing) {
  utils_flatten(nullptr, nullptr, 0);
  const UtilsPiece empty[2] = {{nullptr, 0}, {nullptr, 0}};
  utils_flatten(nullptr, empty, 2);
}

TEST(Utils, Flatten_refuses_null_pointers_and_negative_sizes_before_it_copies) {
  unsigned char out[2] = {1, 2};
  const unsigned char in = 9;
  for (const UtilsPiece& bad : {UtilsPiece{nullptr, 1}, UtilsPiece{&in, -1}}) {
    const UtilsPiece pieces[2] = {{&in, 1}, bad};
    EXPECT_THROW(utils_flatten(out, pieces, 2), std::invalid_argument);
    EXPECT_EQ(out[0], 1);
  }
  const UtilsPiece piece{&in, 1};
  EXPECT_THROW(utils_flatten(nullptr, &piece, 1), std::invalid_argument);
}

TEST(Utils, Self_test_is_right_and_skips_other_devices) {
  char detail[100];
  EXPECT_EQ(ds_self_test_utils("cpu", detail, sizeof detail), DS_SELF_TEST_OK) << detail;
  EXPECT_EQ(ds_self_test_utils("cuda", detail, sizeof detail), DS_SELF_TEST_SKIPPED);
  EXPECT_STREQ(detail, "has code for cpu, not for cuda");
}

}  // namespace
}  // namespace ds

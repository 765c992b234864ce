#include "cut.h"

#include <gtest/gtest.h>

#include <random>

namespace ds {
namespace {

constexpr std::int64_t kPage = 4096;

// Every cut of [begin, end), checked for what the device and other writers ask for.
void expect_right_cuts(const CutRules& rules, std::int64_t begin, std::int64_t end,
                       std::uintptr_t address) {
  std::int64_t position = begin;
  while (position < end) {
    const Cut cut =
        next_cut(rules, position, end, address + static_cast<std::uintptr_t>(position - begin));
    ASSERT_EQ(cut.begin, position);
    ASSERT_GT(cut.end, cut.begin);
    ASSERT_LE(cut.end, end);
    ASSERT_LE(cut.io_begin, cut.begin);
    ASSERT_GE(cut.io_end, cut.end);
    ASSERT_LE(cut.io_end - cut.io_begin, cut.bounce ? rules.bounce : rules.block);
    if (cut.direct) {
      ASSERT_TRUE(rules.direct);
      ASSERT_EQ(cut.io_begin % rules.align, 0);
      ASSERT_EQ(cut.io_end % rules.align, 0);
      if (!cut.bounce) {
        const auto at = address + static_cast<std::uintptr_t>(position - begin);
        ASSERT_EQ(at % static_cast<std::uintptr_t>(rules.memory_align), 0u);
      }
    } else {
      ASSERT_FALSE(cut.bounce);
    }
    if (rules.write || !cut.bounce) {
      ASSERT_EQ(cut.io_begin, cut.begin);
      ASSERT_EQ(cut.io_end, cut.end);
    }
    position = cut.end;
  }
}

TEST(Cut, Of_any_range_and_address_covers_it_once_with_operations_that_the_device_takes) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 200'000; ++i) {
    CutRules rules;
    rules.write = random() % 2 == 0;
    rules.direct = random() % 4 != 0;
    rules.align = kPage << random() % 2;
    rules.block = rules.align * static_cast<std::int64_t>(1 + random() % 16);
    rules.bounce = std::min(rules.block, rules.align * static_cast<std::int64_t>(1 + random() % 4));
    rules.memory_align = std::int64_t{1} << random() % 10;
    const auto begin = static_cast<std::int64_t>(random() % (20 * kPage));
    const auto size = static_cast<std::int64_t>(1 + random() % (random() % 2 ? 100 : 60 * kPage));
    expect_right_cuts(rules, begin, begin + size, random() % 8192);
    if (HasFatalFailure()) {
      FAIL() << (rules.write ? "write " : "read ") << begin << " + " << size << ", align "
             << rules.align << ", block " << rules.block << ", bounce " << rules.bounce;
    }
  }
}

TEST(Cut, Of_what_is_aligned_needs_no_memory_of_our_own) {
  const CutRules rules{false, true, 1 << 20, 1 << 20, kPage, 512};
  const Cut cut = next_cut(rules, 0, 8 << 20, 4096);
  EXPECT_TRUE(cut.direct);
  EXPECT_FALSE(cut.bounce);
  EXPECT_EQ(cut.end, 1 << 20);
}

TEST(Cut, Of_a_write_leaves_pages_that_it_fills_in_part_to_the_page_cache) {
  const CutRules rules{true, true, 1 << 20, 1 << 20, kPage, 512};
  const Cut head = next_cut(rules, 100, 1 << 21, 0);
  EXPECT_FALSE(head.direct);
  EXPECT_EQ(head.end, kPage);
  const Cut tail = next_cut(rules, 2 * kPage, 2 * kPage + 17, 0);
  EXPECT_FALSE(tail.direct);
  EXPECT_EQ(tail.end, 2 * kPage + 17);
}

TEST(Cut, Of_a_short_read_with_an_odd_end_is_one_operation) {
  const CutRules rules{false, true, 1 << 20, 1 << 20, kPage, 512};
  const Cut cut = next_cut(rules, 0, 10'000, 4096);
  EXPECT_EQ(cut.end, 10'000);
  EXPECT_EQ(cut.io_end, 3 * kPage);
}

}  // namespace
}  // namespace ds

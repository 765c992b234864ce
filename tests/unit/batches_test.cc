#include "orchestrator/batches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace dsi {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::size_t> sizes(const char* rule, std::size_t hosts) {
  auto result = batch_sizes(rule, hosts);
  EXPECT_TRUE(result) << result.error().what;
  return result.value_or(std::vector<std::size_t>{});
}

TEST(BatchSizes, Follow_the_rule_and_repeat_its_end) {
  EXPECT_THAT(sizes("1,10%,50%", 100), ElementsAre(1, 10, 50, 39));
  EXPECT_THAT(sizes("1,10%,50%", 8), ElementsAre(1, 1, 4, 2));
  EXPECT_THAT(sizes("2", 5), ElementsAre(2, 2, 1));
  EXPECT_THAT(sizes("100%", 7), ElementsAre(7));
  EXPECT_THAT(sizes("50", 7), ElementsAre(7));
  EXPECT_THAT(sizes("", 7), ElementsAre(7));
  EXPECT_THAT(sizes("1,10%", 1), ElementsAre(1));
  EXPECT_THAT(sizes("1%", 3), ElementsAre(1, 1, 1));
  EXPECT_THAT(sizes("1,10%", 0), IsEmpty());
  EXPECT_THAT(sizes("", 0), IsEmpty());
}

TEST(BatchSizes, Always_add_up_to_all_hosts) {
  for (std::size_t hosts : {1u, 2u, 3u, 10u, 99u, 1000u}) {
    for (const char* rule : {"1,10%,50%", "33%", "7", "1,2,4,8", "100%"}) {
      auto all = sizes(rule, hosts);
      EXPECT_EQ(std::accumulate(all.begin(), all.end(), std::size_t{0}), hosts) << rule;
    }
  }
}

TEST(BatchSizes, Refuse_what_is_no_rule) {
  for (const char* rule : {"0", "0%", "1,,2", "1,", ",1", "101%", "-1", "1.5", "ten", "1 2", "%",
                           "99999999999999999999", "1,0"}) {
    auto result = batch_sizes(rule, 10);
    ASSERT_FALSE(result) << rule;
    EXPECT_THAT(result.error().help, HasSubstr("1,10%,50%")) << rule;
  }
}

TEST(FailuresAllowed, Are_a_number_or_a_part) {
  EXPECT_EQ(failures_allowed("", 100).value(), 0u);
  EXPECT_EQ(failures_allowed("0", 100).value(), 0u);
  EXPECT_EQ(failures_allowed("3", 100).value(), 3u);
  EXPECT_EQ(failures_allowed("5%", 100).value(), 5u);
  EXPECT_EQ(failures_allowed("5%", 10).value(), 0u);  // Half a host is none.
  for (const char* rule : {"x", "-1", "101%", "1,2"}) EXPECT_FALSE(failures_allowed(rule, 9));
}

TEST(ParseWindow, Reads_hours_minutes_and_seconds) {
  EXPECT_EQ(parse_window("2h").value(), 2h);
  EXPECT_EQ(parse_window("90m").value(), 90min);
  EXPECT_EQ(parse_window("1h30m").value(), 90min);
  EXPECT_EQ(parse_window("1h0m5s").value(), 3605s);
  EXPECT_EQ(parse_window("168h").value(), 168h);
  for (const char* text : {"", "2", "h", "0h", "-1h", "1d", "1m1h", "1h1h", "169h", "2h ", "1.5h",
                           "99999999999999999999h", "1h30"}) {
    EXPECT_FALSE(parse_window(text)) << text;
  }
}

TEST(SpreadOver, Takes_one_of_each_rack_in_turn) {
  EXPECT_THAT(spread_over({"a", "a", "a", "b", "b", "c"}), ElementsAre(0, 3, 5, 1, 4, 2));
  EXPECT_THAT(spread_over({"", "", ""}), ElementsAre(0, 1, 2));
  EXPECT_THAT(spread_over({}), IsEmpty());
}

}  // namespace
}  // namespace dsi

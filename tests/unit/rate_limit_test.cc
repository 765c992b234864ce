#include "orchestrator/distribute/rate_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dsi::distribute {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

TEST(ParseRate, Reads_bits_and_bytes) {
  EXPECT_EQ(parse_rate("").value(), 0u);
  EXPECT_EQ(parse_rate("100mbit").value(), 12'500'000u);
  EXPECT_EQ(parse_rate("1.5Gbit/s").value(), 187'500'000u);
  EXPECT_EQ(parse_rate("20MB").value(), 20u << 20);
  EXPECT_EQ(parse_rate("512KiB/s").value(), 512u << 10);
}

TEST(ParseRate, Says_what_is_no_rate) {
  for (const char* text :
       {"fast", "100", "mbit", "-5mbit", "10mbits", "1e999MB", "nanMB", "5 mbit"}) {
    EXPECT_FALSE(parse_rate(text)) << text;
  }
  EXPECT_THAT(parse_rate("100").error().what, HasSubstr("needs a rate, not \"100\""));
  EXPECT_THAT(parse_rate("1kbit").error().what, HasSubstr("too slow"));
}

TEST(RateLimit, Makes_each_wait_for_those_before) {
  RateLimit limit(1'000'000);
  auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 5; ++i) limit.wait_for(50'000, {});
  // The first goes at once, each later one when those before it are through.
  EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(200));
}

TEST(RateLimit, Of_nothing_or_after_a_stop_does_not_wait) {
  RateLimit none(0);
  none.wait_for(std::size_t{1} << 40, {});
  RateLimit slow(32 * 1024);
  std::stop_source stop;
  stop.request_stop();
  slow.wait_for(std::size_t{1} << 30, stop.get_token());
  slow.wait_for(1, stop.get_token());  // Would be due in nine hours.
}

}  // namespace
}  // namespace dsi::distribute

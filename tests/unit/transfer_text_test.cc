#include "orchestrator/transfer_text.h"

#include <gtest/gtest.h>

namespace dsi {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

TransferMeter::Clock::time_point after(double seconds) {
  return TransferMeter::Clock::time_point{} +
         std::chrono::duration_cast<TransferMeter::Clock::duration>(
             std::chrono::duration<double>(seconds));
}

TEST(TransferMeter, Says_what_was_sent_while_nothing_more_is_known) {
  TransferMeter meter;
  EXPECT_EQ(meter.text({3, 8, 5 * kMiB / 2, 0, 0}, after(1)), "3/8 hosts, 2.5 MiB");
}

TEST(TransferMeter, Says_rate_and_time_left_once_there_is_something_to_go_by) {
  TransferMeter meter;
  EXPECT_EQ(meter.text({0, 8, 0, 0, 1024 * kMiB}, after(10)), "0/8 hosts, 0.0 of 1024 MiB");
  EXPECT_EQ(meter.text({0, 8, 0, 10 * kMiB, 1024 * kMiB}, after(10.1)),
            "0/8 hosts, 10.0 of 1024 MiB");
  EXPECT_EQ(meter.text({0, 8, 0, 224 * kMiB, 1024 * kMiB}, after(12)),
            "0/8 hosts, 224 of 1024 MiB, 112.0 MiB/s, 8 s left");
}

TEST(TransferMeter, Forgets_how_fast_it_was_a_while_ago) {
  TransferMeter meter;
  std::string text;
  for (int second = 0; second <= 20; ++second) {
    std::uint64_t done = second <= 10 ? 100u * static_cast<unsigned>(second) * kMiB
                                      : (1000u + static_cast<unsigned>(second - 10)) * kMiB;
    text = meter.text({0, 1, 0, done, 2000 * kMiB}, after(second));
  }
  EXPECT_EQ(text, "0/1 hosts, 1010 of 2000 MiB, 1.0 MiB/s, 17 min left");
}

TEST(TransferMeter, Is_silent_about_the_rate_when_bytes_were_lost_with_a_host) {
  TransferMeter meter;
  meter.text({0, 2, 0, 50 * kMiB, 200 * kMiB}, after(0));
  EXPECT_EQ(meter.text({0, 2, 0, 20 * kMiB, 100 * kMiB}, after(1)), "0/2 hosts, 20.0 of 100 MiB");
}

}  // namespace
}  // namespace dsi

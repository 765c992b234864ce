#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <stop_token>
#include <string_view>

#include "orchestrator/base/result.h"

namespace dsi::distribute {

// "100mbit", "1.5gbit" (bits), "20MB", "512KiB" (bytes; KB and KiB are both 1024): bytes a second.
// An empty text is 0: no limit.
Result<std::uint64_t> parse_rate(std::string_view text);

// Lets bytes through at a rate, whoever sends them: each sender waits for its turn. Thread-safe.
class RateLimit {
 public:
  explicit RateLimit(std::uint64_t bytes_per_second) : rate_(bytes_per_second) {}

  // Returns when `bytes` may be sent, at once if there is no limit or after a stop.
  void wait_for(std::size_t bytes, std::stop_token stop);
  std::uint64_t bytes_per_second() const { return rate_; }

 private:
  using Clock = std::chrono::steady_clock;
  const std::uint64_t rate_;  // 0: no limit.
  std::mutex mutex_;
  Clock::time_point free_at_{};  // When all that was let through has been sent.
};

}  // namespace dsi::distribute

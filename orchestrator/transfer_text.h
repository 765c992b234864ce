#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace dsi {

// How far a run is, for the progress line.
struct Transfer {
  std::size_t hosts_done = 0;
  std::size_t hosts = 0;
  std::uint64_t sent = 0;    // Bytes that left this machine.
  std::uint64_t done = 0;    // Bytes that are on hosts, of those that
  std::uint64_t wanted = 0;  // are to come there; 0: none, or not known yet.
};

// Rate and time left, from the last few seconds. Belongs to one thread.
class TransferMeter {
 public:
  using Clock = std::chrono::steady_clock;

  // "12/64 hosts, 310 of 1,024 MiB, 180 MiB/s, 4 s left"
  std::string text(const Transfer& now, Clock::time_point at);

 private:
  struct Sample {
    Clock::time_point at;
    std::uint64_t done;
  };
  Sample old_{};
  Sample middle_{};  // Becomes `old_` when it is old enough, so that the span stays a few seconds.
  bool started_ = false;
};

}  // namespace dsi

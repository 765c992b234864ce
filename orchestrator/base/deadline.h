#pragma once

#include <algorithm>
#include <chrono>

namespace dsi {

// A point in time after which a wait gives up. Every wait in the program takes one.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  static Deadline after(std::chrono::milliseconds span) { return Deadline(Clock::now() + span); }

  bool passed() const { return Clock::now() >= at_; }
  std::chrono::milliseconds left() const {
    return std::max(std::chrono::milliseconds(0),
                    std::chrono::ceil<std::chrono::milliseconds>(at_ - Clock::now()));
  }
  // For poll(2): milliseconds, at most `most`.
  int poll_timeout(std::chrono::milliseconds most = std::chrono::hours(1)) const {
    return static_cast<int>(std::min(left(), most).count());
  }

 private:
  explicit Deadline(Clock::time_point at) : at_(at) {}
  Clock::time_point at_;
};

}  // namespace dsi

#include "orchestrator/adapters/stop_wait.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

namespace dsi {

StopWait::StopWait(std::stop_token stop) : stop_(std::move(stop)) {
  if (!stop_.stop_possible()) return;
  event_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event_) return;
  wake_.emplace(stop_, [fd = event_.get()] {
    std::uint64_t one = 1;
    [[maybe_unused]] ssize_t written = ::write(fd, &one, sizeof one);
  });
}

StopWait::Outcome StopWait::wait(std::span<pollfd> fds, Deadline deadline) {
  std::vector<pollfd> all(fds.begin(), fds.end());
  if (event_) all.push_back({.fd = event_.get(), .events = POLLIN, .revents = 0});
  // Without an eventfd (no descriptors left) a stop is still heard, a little later.
  bool deaf = stop_.stop_possible() && !event_;
  for (;;) {
    if (stopped()) return Outcome::kStopped;
    auto most = deaf ? std::chrono::milliseconds(50) : std::chrono::milliseconds(3'600'000);
    int ready = ::poll(all.data(), all.size(), deadline.poll_timeout(most));
    if (stopped()) return Outcome::kStopped;
    if (ready > 0) {
      std::copy_n(all.begin(), fds.size(), fds.begin());
      return Outcome::kReady;
    }
    if (deadline.passed()) return Outcome::kTimeout;
  }
}

}  // namespace dsi

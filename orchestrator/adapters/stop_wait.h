#pragma once

#include <poll.h>

#include <functional>
#include <optional>
#include <span>
#include <stop_token>

#include "orchestrator/base/deadline.h"
#include "orchestrator/base/unique_fd.h"

namespace dsi {

// Waits for descriptors, a deadline and a stop at the same time. A stop wakes the wait at once:
// it writes to an eventfd that every poll(2) here looks at. Belongs to one thread.
class StopWait {
 public:
  explicit StopWait(std::stop_token stop);

  enum class Outcome { kReady, kTimeout, kStopped };
  // kReady: at least one of `fds` has revents. No `fds`: a sleep. A stop beats everything else.
  Outcome wait(std::span<pollfd> fds, Deadline deadline);

  bool stopped() const { return stop_.stop_requested(); }

 private:
  std::stop_token stop_;
  UniqueFd event_;
  std::optional<std::stop_callback<std::function<void()>>> wake_;
};

}  // namespace dsi

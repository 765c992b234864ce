#pragma once

#include <csignal>
#include <stop_token>
#include <thread>

#include "orchestrator/base/unique_fd.h"

namespace dsi {

// ^C, SIGTERM and SIGHUP as stop tokens. The first asks to drain: start nothing new, finish what is
// in flight, report. The second aborts: every connection is shut down, and the agents leave their
// hosts with what they had.
//
// Make it before any other thread: it blocks the signals in the calling thread, and threads inherit
// that; a thread of its own waits for them.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  std::stop_token drain() const { return drain_.get_token(); }
  std::stop_token abort() const { return abort_.get_token(); }

 private:
  std::stop_source drain_;
  std::stop_source abort_;
  void listen();

  sigset_t before_;
  UniqueFd signals_;
  UniqueFd end_;
  std::thread thread_;
};

}  // namespace dsi

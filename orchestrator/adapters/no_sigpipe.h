#pragma once

#include <signal.h>

#include <ctime>

namespace dsi {

// A descriptor that libssh writes to with write(2) raises SIGPIPE when the peer is gone. Its
// sockets are written with MSG_NOSIGNAL, and so are ours; this covers what is left (the agent's),
// and the thread's mask is restored so that the program's own policy stays the program's.
class NoSigPipe {
 public:
  NoSigPipe() {
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, &old_);
  }
  ~NoSigPipe() {
    if (sigismember(&old_, SIGPIPE) == 0) {
      sigset_t pipe;
      sigemptyset(&pipe);
      sigaddset(&pipe, SIGPIPE);
      timespec none{};
      while (sigtimedwait(&pipe, nullptr, &none) == SIGPIPE) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &old_, nullptr);
  }
  NoSigPipe(const NoSigPipe&) = delete;
  NoSigPipe& operator=(const NoSigPipe&) = delete;

 private:
  sigset_t old_{};
};

}  // namespace dsi

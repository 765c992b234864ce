#include "orchestrator/interrupt.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <string_view>

namespace dsi {

namespace {

// A signal that is ignored already stays so: `nohup ds-install ... &` is to survive the terminal.
// It must not be blocked either, because Linux queues a blocked signal even if it is ignored.
sigset_t handled() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before {};
    if (::sigaction(signal, nullptr, &before) == 0 && before.sa_handler != SIG_IGN) {
      sigaddset(&set, signal);
    }
  }
  return set;
}

void say(std::string_view text) {
  (void)!::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace

Interrupt::Interrupt() {
  // A peer that goes away must be an error of a write, not the end of the program.
  ::signal(SIGPIPE, SIG_IGN);
  sigset_t set = handled();
  ::pthread_sigmask(SIG_BLOCK, &set, &before_);
  thread_ = std::jthread([this, set](std::stop_token ended) {
    while (!ended.stop_requested()) {
      // Short waits, because a stop token cannot wake sigtimedwait.
      timespec wait{0, 200'000'000};
      if (::sigtimedwait(&set, nullptr, &wait) < 0) continue;
      if (drain_.request_stop()) {
        say("\nInterrupted: finishing what is in flight. Press ^C again to abort.\n");
      } else {
        abort_.request_stop();
      }
    }
  });
}

Interrupt::~Interrupt() {
  thread_.request_stop();
  thread_.join();
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace dsi

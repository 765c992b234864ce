#include "orchestrator/interrupt.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
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
  // Descriptors, so that one poll() waits for both and nobody waits for this thread in the end.
  signals_.reset(::signalfd(-1, &set, SFD_CLOEXEC));
  end_.reset(::eventfd(0, EFD_CLOEXEC));
  thread_ = std::thread([this] { listen(); });
}

void Interrupt::listen() {
  for (;;) {
    pollfd fds[] = {{signals_.get(), POLLIN, 0}, {end_.get(), POLLIN, 0}};
    if (::poll(fds, 2, -1) < 0 && errno != EINTR) return;
    if (fds[1].revents != 0) return;
    signalfd_siginfo info{};
    if (fds[0].revents == 0 || ::read(signals_.get(), &info, sizeof info) != sizeof info) continue;
    if (drain_.request_stop()) {
      say("\nInterrupted: finishing what is in flight. Press ^C again to abort.\n");
    } else {
      abort_.request_stop();
    }
  }
}

Interrupt::~Interrupt() {
  std::uint64_t one = 1;
  (void)!::write(end_.get(), &one, sizeof one);
  thread_.join();
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace dsi

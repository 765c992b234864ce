#include "orchestrator/adapters/local_host.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>

#include "orchestrator/adapters/spawn.h"
#include "orchestrator/adapters/stop_wait.h"
#include "orchestrator/adapters/tail.h"
#include "orchestrator/base/unique_fd.h"

namespace dsi {
namespace {

using std::chrono::milliseconds;

// What write() keeps of the command's output for a later read(), as over SSH.
constexpr std::size_t kReadAhead = 16 * 1024 * 1024;

double seconds_since(Deadline::Clock::time_point start) {
  return std::chrono::duration<double>(Deadline::Clock::now() - start).count();
}

class LocalChannel : public Channel {
 public:
  LocalChannel(std::string name, std::stop_token stop)
      : name_(std::move(name)), stop_(stop), waiter_(std::move(stop)) {}
  ~LocalChannel() override;
  LocalChannel(const LocalChannel&) = delete;
  LocalChannel& operator=(const LocalChannel&) = delete;

  Result<void> start(std::string_view command);

  Result<std::size_t> read(std::span<char> buffer, Deadline deadline) override;
  Result<bool> readable(int wake, Deadline deadline) override;
  Result<void> write(std::string_view data, Deadline deadline) override;
  Result<void> close_stdin() override;
  Result<Exit> wait(Deadline deadline) override;
  std::string standard_error() const override { return err_tail_.text(); }

 private:
  // Reads what standard error has; closes it at its end.
  void take_stderr();
  // Bytes, 0 for none yet, nothing at the end.
  std::optional<std::size_t> take_stdout(std::span<char> buffer);
  void read_ahead();
  bool reap(int options);
  tl::unexpected<Error> interrupted() const {
    return fail("interrupted while working on {}", name_);
  }

  std::string name_;
  std::stop_token stop_;
  StopWait waiter_;
  pid_t pid_ = -1;  // -1 once reaped.
  int status_ = 0;
  UniqueFd process_;
  UniqueFd in_;
  UniqueFd out_;
  UniqueFd err_;
  std::string ahead_;
  std::size_t ahead_at_ = 0;
  Tail err_tail_;
};

Result<void> LocalChannel::start(std::string_view command) {
  // Standard input is a socket pair and not a pipe: a socket can be written with MSG_NOSIGNAL, so
  // that a command that ends early is an error here and not a SIGPIPE for the whole program.
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return fail_errno(errno, "cannot make a socket pair");
  }
  in_.reset(ends[0]);
  UniqueFd in_there(ends[1]);
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return fail_errno(errno, "cannot make a pipe");
  out_.reset(ends[0]);
  UniqueFd out_there(ends[1]);
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return fail_errno(errno, "cannot make a pipe");
  err_.reset(ends[0]);
  UniqueFd err_there(ends[1]);
  // Ours only: a program is not prepared for a non-blocking stream.
  for (UniqueFd* fd : {&in_, &out_, &err_}) ::fcntl(fd->get(), F_SETFL, O_NONBLOCK);
  DSI_TRY(pid_, spawn({.argv = {"/bin/sh", "-c", std::string(command)},
                       .folder = {},
                       .environment = {},
                       .in = in_there.get(),
                       .out = out_there.get(),
                       .err = err_there.get()}));
  process_.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  return {};
}

bool LocalChannel::reap(int options) {
  if (pid_ < 0) return true;
  pid_t got = 0;
  do {
    got = ::waitpid(pid_, &status_, options);
  } while (got < 0 && errno == EINTR);
  if (got == 0) return false;
  pid_ = -1;
  return true;
}

LocalChannel::~LocalChannel() {
  // As over SSH the command sees its streams end. A moment to take the hint, then it is told.
  in_.reset();
  out_.reset();
  err_.reset();
  Deadline hint = Deadline::after(milliseconds(stop_.stop_requested() ? 0 : 200));
  while (!reap(WNOHANG) && !hint.passed()) {
    pollfd fd{.fd = process_.get(), .events = POLLIN, .revents = 0};
    ::poll(&fd, 1, std::min(hint.poll_timeout(), process_ ? 200 : 5));
  }
  if (pid_ >= 0) end_process_group(pid_);
}

void LocalChannel::take_stderr() {
  std::array<char, 16 * 1024> buffer{};
  while (err_) {
    ssize_t n = ::read(err_.get(), buffer.data(), buffer.size());
    if (n > 0) {
      err_tail_.add({buffer.data(), static_cast<std::size_t>(n)});
    } else if (n < 0 && errno == EINTR) {
      continue;
    } else {
      if (n == 0 || errno != EAGAIN) err_.reset();
      return;
    }
  }
}

std::optional<std::size_t> LocalChannel::take_stdout(std::span<char> buffer) {
  while (out_) {
    ssize_t n = ::read(out_.get(), buffer.data(), buffer.size());
    if (n > 0) return static_cast<std::size_t>(n);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return 0;
    out_.reset();
  }
  return std::nullopt;
}

Result<std::size_t> LocalChannel::read(std::span<char> buffer, Deadline deadline) {
  if (ahead_at_ < ahead_.size()) {
    std::size_t n = std::min(buffer.size(), ahead_.size() - ahead_at_);
    std::memcpy(buffer.data(), ahead_.data() + ahead_at_, n);
    ahead_at_ += n;
    if (ahead_at_ == ahead_.size()) {
      ahead_.clear();
      ahead_at_ = 0;
    }
    return n;
  }
  auto start = Deadline::Clock::now();
  for (;;) {
    if (waiter_.stopped()) return interrupted();
    take_stderr();
    std::optional<std::size_t> got = take_stdout(buffer);
    if (!got) return 0;
    if (*got > 0) return *got;
    std::array<pollfd, 2> fds{{{out_.get(), POLLIN, 0}, {err_.get(), POLLIN, 0}}};
    switch (waiter_.wait(fds, deadline)) {
      case StopWait::Outcome::kReady:
        break;
      case StopWait::Outcome::kStopped:
        return interrupted();
      case StopWait::Outcome::kTimeout:
        return fail("{} sent nothing for {:.1f} s", name_, seconds_since(start));
    }
  }
}

Result<bool> LocalChannel::readable(int wake, Deadline deadline) {
  for (;;) {
    if (waiter_.stopped()) return interrupted();
    take_stderr();
    if (ahead_at_ < ahead_.size() || !out_) return true;
    std::array<pollfd, 3> fds{
        {{out_.get(), POLLIN, 0}, {wake, POLLIN, 0}, {err_.get(), POLLIN, 0}}};
    switch (waiter_.wait(fds, deadline)) {
      case StopWait::Outcome::kReady:
        if (fds[0].revents != 0) return true;
        if (fds[1].revents != 0) return false;
        break;
      case StopWait::Outcome::kStopped:
        return interrupted();
      case StopWait::Outcome::kTimeout:
        return false;
    }
  }
}

void LocalChannel::read_ahead() {
  take_stderr();
  std::array<char, 32 * 1024> piece{};
  while (ahead_.size() - ahead_at_ < kReadAhead) {
    std::optional<std::size_t> got = take_stdout(piece);
    if (!got || *got == 0) return;
    ahead_.append(piece.data(), *got);
  }
}

Result<void> LocalChannel::write(std::string_view data, Deadline deadline) {
  auto start = Deadline::Clock::now();
  std::size_t total = data.size();
  while (!data.empty()) {
    if (waiter_.stopped()) return interrupted();
    ssize_t n = in_ ? ::send(in_.get(), data.data(), data.size(), MSG_NOSIGNAL) : -1;
    if (n > 0) {
      data.remove_prefix(static_cast<std::size_t>(n));
      continue;
    }
    if (in_ && errno == EINTR) continue;
    if (!in_ || errno != EAGAIN) {
      return fail("the command on {} ended before it had read everything", name_);
    }
    read_ahead();
    bool room = ahead_.size() - ahead_at_ < kReadAhead;
    std::array<pollfd, 3> fds{
        {{in_.get(), POLLOUT, 0}, {room ? out_.get() : -1, POLLIN, 0}, {err_.get(), POLLIN, 0}}};
    switch (waiter_.wait(fds, deadline)) {
      case StopWait::Outcome::kReady:
        break;
      case StopWait::Outcome::kStopped:
        return interrupted();
      case StopWait::Outcome::kTimeout:
        return fail("{} took only {} of {} bytes within {:.1f} s", name_, total - data.size(),
                    total, seconds_since(start));
    }
  }
  return {};
}

Result<void> LocalChannel::close_stdin() {
  in_.reset();
  return {};
}

Result<Channel::Exit> LocalChannel::wait(Deadline deadline) {
  auto start = Deadline::Clock::now();
  std::array<char, 32 * 1024> scrap{};
  ahead_.clear();
  ahead_at_ = 0;
  std::optional<Deadline> grace;
  for (;;) {
    if (waiter_.stopped()) return interrupted();
    take_stderr();
    for (;;) {
      std::optional<std::size_t> got = take_stdout(scrap);
      if (!got || *got == 0) break;
    }
    bool ended = reap(WNOHANG);
    if (ended && !out_ && !err_) break;
    // A process that the command left behind may hold the streams open for ever.
    if (ended && !grace) grace = Deadline::after(milliseconds(1'000));
    if (ended && grace->passed()) break;
    std::array<pollfd, 3> fds{{{out_.get(), POLLIN, 0},
                               {err_.get(), POLLIN, 0},
                               {ended ? -1 : process_.get(), POLLIN, 0}}};
    bool hurry = grace && grace->left() < deadline.left();
    Deadline until = hurry ? *grace : deadline;
    // Without a pidfd (Linux before 5.3) nothing tells of the end: look now and then.
    if (!process_ && !ended) until = Deadline::after(std::min(until.left(), milliseconds(20)));
    StopWait::Outcome outcome = waiter_.wait(fds, until);
    if (outcome == StopWait::Outcome::kStopped) return interrupted();
    if (deadline.passed() && !ended && !reap(WNOHANG)) {
      return fail("the command on {} did not end within {:.1f} s", name_, seconds_since(start));
    }
  }
  take_stderr();
  Exit exit;
  if (WIFSIGNALED(status_)) {
    exit.signal = signal_name(WTERMSIG(status_));
  } else {
    exit.code = WEXITSTATUS(status_);
  }
  exit.err = err_tail_.text();
  return exit;
}

class LocalHost : public RemoteHost {
 public:
  LocalHost(std::string name, std::stop_token stop)
      : name_(std::move(name)), stop_(std::move(stop)) {}

  Result<std::unique_ptr<Channel>> exec(std::string_view command, Deadline) override {
    if (stop_.stop_requested()) return fail("interrupted while working on {}", name_);
    auto channel = std::make_unique<LocalChannel>(name_, stop_);
    DSI_CHECK(channel->start(command));
    return channel;
  }
  bool alive() const override { return !stop_.stop_requested(); }

 private:
  std::string name_;
  std::stop_token stop_;
};

}  // namespace

tl::expected<std::unique_ptr<RemoteHost>, ConnectError> LocalConnector::connect(
    const Host& host, Deadline, std::stop_token stop) {
  std::string name = host.name.empty() ? "this machine" : host.name;
  if (stop.stop_requested()) {
    return tl::unexpected<ConnectError>(
        {ConnectFailure::kCancelled, {fmt::format("interrupted before {}", name), {}}});
  }
  return std::make_unique<LocalHost>(std::move(name), std::move(stop));
}

}  // namespace dsi

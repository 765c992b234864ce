// How this works
//
// The channel never waits by itself: each function asks libssh for what is there without blocking,
// and when there is nothing lets the session handle what arrives (SshHost::pump), until the
// deadline. So a channel hears of a stop, a dead way and a keepalive without knowing any of them.
//
// Standard output, standard error and what we write share the session. Whoever waits for one has
// to empty the others, or both sides would wait for each other with full windows: read() and wait()
// take standard error first, and write() takes everything, keeping the output for a later read().
//
// A channel that libssh calls closed may hold bytes yet, and a count of zero is no end;
// take_stdout() is the one place that tells "nothing yet" from "no more" from "lost".

#include "orchestrator/adapters/ssh_channel.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>

#include "orchestrator/adapters/no_sigpipe.h"
#include "orchestrator/adapters/ssh_session.h"

namespace dsi {
namespace {

using std::chrono::milliseconds;

// One write's worth: enough to keep the socket full, small enough to keep memory flat.
constexpr std::size_t kWritePiece = 32 * 1024;
// What write() keeps of the command's output for a later read(); see Channel::write.
constexpr std::size_t kReadAhead = 16 * 1024 * 1024;

}  // namespace

Result<SshChannel::Opened> SshChannel::open(Deadline deadline) {
  channel_.reset(ssh_channel_new(host_.session()));
  if (!channel_) return host_.lost();
  // The exit signal's name comes by callback only.
  callbacks_.userdata = this;
  callbacks_.channel_exit_status_function = [](ssh_session, ssh_channel, int status, void* self) {
    static_cast<SshChannel*>(self)->exit_code_ = status;
  };
  callbacks_.channel_exit_signal_function = [](ssh_session, ssh_channel, const char* signal, int,
                                               const char*, const char*, void* self) {
    static_cast<SshChannel*>(self)->exit_signal_ = signal;
  };
  ssh_callbacks_init(&callbacks_);
  ssh_set_channel_callbacks(channel_.get(), &callbacks_);
  auto start = Deadline::Clock::now();
  auto drive = [&](const std::function<int()>& call) -> Result<int> {
    for (;;) {
      int rc = call();
      if (rc != SSH_AGAIN) return rc;
      host_.acknowledge_at_once();
      DSI_TRY(bool in_time, host_.pump(deadline));
      if (!in_time) {
        return fail("{} did not start a command within {:.1f} s", host_.name(),
                    seconds_since(start));
      }
    }
  };
  DSI_TRY(int opened, drive([&] { return ssh_channel_open_session(channel_.get()); }));
  if (opened != SSH_OK) {
    if (!host_.alive()) return host_.lost();
    return Opened::kRefused;
  }
  DSI_TRY(int started,
          drive([&] { return ssh_channel_request_exec(channel_.get(), command_.c_str()); }));
  if (started != SSH_OK) {
    if (!host_.alive()) return host_.lost();
    return Opened::kRefused;
  }
  return Opened::kYes;
}

SshChannel::~SshChannel() {
  if (!channel_) return;
  NoSigPipe quiet;
  ssh_remove_channel_callbacks(channel_.get(), &callbacks_);
  if (host_.alive() && ssh_channel_is_open(channel_.get()) != 0) ssh_channel_close(channel_.get());
  channel_.reset();
  host_.channel_closed();
}

void SshChannel::take_stderr() {
  std::array<char, 4096> buffer{};
  for (;;) {
    int n = ssh_channel_read_nonblocking(channel_.get(), buffer.data(), buffer.size(), 1);
    if (n <= 0) return;
    err_.add({buffer.data(), static_cast<std::size_t>(n)});
  }
}

Result<std::optional<std::size_t>> SshChannel::take_stdout(std::span<char> buffer) {
  auto most = static_cast<std::uint32_t>(std::min<std::size_t>(buffer.size(), 1 << 20));
  int n = ssh_channel_read_nonblocking(channel_.get(), buffer.data(), most, 0);
  if (n > 0) return static_cast<std::size_t>(n);
  if (n == SSH_EOF) return std::nullopt;
  // Zero is no end: libssh also returns it when nothing has come yet.
  if (n == 0) {
    bool ended =
        ssh_channel_is_eof(channel_.get()) != 0 || ssh_channel_is_closed(channel_.get()) != 0;
    if (ended && ssh_channel_poll(channel_.get(), 0) <= 0) return std::nullopt;
    return std::size_t{0};
  }
  if (!host_.alive()) return host_.lost();
  if (ssh_channel_is_closed(channel_.get()) != 0) return std::nullopt;
  return host_.lost();
}

Result<std::size_t> SshChannel::read(std::span<char> buffer, Deadline deadline) {
  NoSigPipe quiet;
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
    // Standard error first: its bytes use up the same window as the output's.
    take_stderr();
    DSI_TRY(std::optional<std::size_t> got, take_stdout(buffer));
    if (!got) return 0;
    if (*got > 0) return *got;
    DSI_TRY(bool in_time, host_.pump(deadline));
    if (!in_time) {
      return fail("{} sent nothing for {:.1f} s", host_.name(), seconds_since(start));
    }
  }
}

Result<bool> SshChannel::readable(int wake, Deadline deadline) {
  NoSigPipe quiet;
  for (;;) {
    if (ahead_at_ < ahead_.size()) return true;
    take_stderr();
    // The end and an error count as well: read() tells them apart.
    if (ssh_channel_poll(channel_.get(), 0) != 0) return true;
    if (ssh_channel_is_eof(channel_.get()) != 0 || ssh_channel_is_closed(channel_.get()) != 0) {
      return true;
    }
    pollfd woken{.fd = wake, .events = POLLIN, .revents = 0};
    if (wake >= 0 && ::poll(&woken, 1, 0) > 0) return false;
    DSI_TRY(bool in_time, host_.pump(deadline, wake));
    if (!in_time) return false;
  }
}

// Takes what the command says while we write, so that a command that answers as it reads (both
// windows full) does not wait for us while we wait for it.
Result<void> SshChannel::read_ahead() {
  take_stderr();
  std::array<char, 32 * 1024> piece{};
  while (ahead_.size() - ahead_at_ < kReadAhead) {
    DSI_TRY(std::optional<std::size_t> got, take_stdout(piece));
    if (!got || *got == 0) break;
    ahead_.append(piece.data(), *got);
  }
  return {};
}

Result<void> SshChannel::write(std::string_view data, Deadline deadline) {
  NoSigPipe quiet;
  auto start = Deadline::Clock::now();
  std::size_t total = data.size();
  auto wait = [&]() -> Result<void> {
    DSI_CHECK(read_ahead());
    DSI_TRY(bool in_time, host_.pump(deadline));
    if (!in_time) {
      return fail("{} took only {} of {} bytes within {:.1f} s", host_.name(), total - data.size(),
                  total, seconds_since(start));
    }
    return {};
  };
  while (!data.empty()) {
    if (!host_.alive()) return host_.lost();
    if (ssh_channel_is_closed(channel_.get()) != 0) {
      return fail("the command on {} ended before it had read everything", host_.name());
    }
    std::size_t window = ssh_channel_window_size(channel_.get());
    if (window == 0) {
      DSI_CHECK(wait());
      continue;
    }
    auto piece = static_cast<std::uint32_t>(std::min({data.size(), window, kWritePiece}));
    int n = ssh_channel_write(channel_.get(), data.data(), piece);
    if (n < 0) {
      if (!host_.alive()) return host_.lost();
      return fail("the command on {} ended before it had read everything", host_.name());
    }
    data.remove_prefix(static_cast<std::size_t>(n));
    if (n == 0) DSI_CHECK(wait());  // A new key is being negotiated.
    for (milliseconds pause = host_.write_pause(); pause > milliseconds(0) && !deadline.passed();
         pause = host_.write_pause()) {
      DSI_CHECK(read_ahead());
      DSI_CHECK(host_.pump(Deadline::after(pause)));
    }
    // libssh queues what the socket does not take; wait, or the queue would grow to the window.
    for (;;) {
      int rc = ssh_blocking_flush(host_.session(), 0);
      if (rc == SSH_OK) break;
      if (rc == SSH_ERROR) return host_.lost();
      DSI_CHECK(wait());
    }
  }
  return {};
}

Result<void> SshChannel::close_stdin() {
  NoSigPipe quiet;
  if (!host_.alive()) return host_.lost();
  if (ssh_channel_is_closed(channel_.get()) != 0) return {};
  if (ssh_channel_send_eof(channel_.get()) == SSH_ERROR && !host_.alive()) return host_.lost();
  return {};
}

Result<Channel::Exit> SshChannel::wait(Deadline deadline) {
  NoSigPipe quiet;
  auto start = Deadline::Clock::now();
  std::array<char, 32 * 1024> scrap{};
  ahead_.clear();
  ahead_at_ = 0;
  bool eof = false;
  std::optional<Deadline> grace;
  for (;;) {
    take_stderr();
    while (!eof) {
      DSI_TRY(std::optional<std::size_t> got, take_stdout(scrap));
      if (got && *got == 0) break;
      eof = !got;
    }
    bool closed = ssh_channel_is_closed(channel_.get()) != 0;
    bool ended = exit_code_.has_value() || !exit_signal_.empty();
    if (closed || (ended && eof)) break;
    // A process that the command left behind may hold the streams open for ever.
    if (ended && !grace) grace = Deadline::after(milliseconds(1'000));
    bool hurry = grace && grace->left() < deadline.left();
    DSI_TRY(bool in_time, host_.pump(hurry ? *grace : deadline));
    if (in_time) continue;
    if (ended) break;
    return fail("the command on {} did not end within {:.1f} s", host_.name(),
                seconds_since(start));
  }
  take_stderr();
  Exit exit;
  exit.signal = exit_signal_;
  if (exit_signal_.empty() && exit_code_) exit.code = *exit_code_;
  exit.err = err_.text();
  return exit;
}

}  // namespace dsi

// How this works
//
// One libssh session per host, used by one thread at a time, and always in libssh's non-blocking
// mode: a call that cannot finish says so, and the waiting is done here, in one place, with the
// deadline and a keepalive. A blocking libssh call has no usable deadline, and one ssh_event for
// several sessions lets a dead host fail a healthy one, so each session has its own.
//
// A stop request is heard in the middle of a wait because its callback shuts the socket down. The
// callback may run in any thread and libssh closes its descriptor whenever it sees an error, after
// which the number may belong to someone else; so the callback has a duplicate of its own.

#include "orchestrator/adapters/ssh_host.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "orchestrator/adapters/ssh_auth.h"
#include "orchestrator/adapters/ssh_connect.h"
#include "orchestrator/adapters/ssh_known_hosts.h"
#include "orchestrator/adapters/ssh_raii.h"
#include "orchestrator/adapters/stop_wait.h"
#include "orchestrator/adapters/tail.h"
#include "orchestrator/base/shell_quote.h"

namespace dsi {
namespace {

using std::chrono::milliseconds;

// AES-GCM first: about 4.5 GB/s a core with the processor's instructions, ChaCha20 3.7, AES-CTR
// with a MAC far behind. curve25519 first: 1 ms of handshake. The rest is for old and strict
// servers.
constexpr const char* kCiphers =
    "aes128-gcm@openssh.com,aes256-gcm@openssh.com,chacha20-poly1305@openssh.com,"
    "aes256-ctr,aes192-ctr,aes128-ctr";
constexpr const char* kKeyExchange =
    "curve25519-sha256,curve25519-sha256@libssh.org,ecdh-sha2-nistp256,ecdh-sha2-nistp384,"
    "ecdh-sha2-nistp521,diffie-hellman-group16-sha512,diffie-hellman-group18-sha512,"
    "diffie-hellman-group14-sha256";

// One write's worth: enough to keep the socket full, small enough to keep memory flat.
constexpr std::size_t kWritePiece = 128 * 1024;
// What write() keeps of the command's output for a later read(); see Channel::write.
constexpr std::size_t kReadAhead = 16 * 1024 * 1024;
// Connections that a busy sshd dropped are tried again this often at most.
constexpr int kMostAttempts = 12;

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

double seconds_since(Deadline::Clock::time_point start) {
  return std::chrono::duration<double>(Deadline::Clock::now() - start).count();
}

ConnectError connect_failure(ConnectFailure kind, Error error) {
  return {kind, std::move(error)};
}

class SshHost;

class SshChannel : public Channel {
 public:
  SshChannel(SshHost& host, std::string command) : host_(host), command_(std::move(command)) {}
  ~SshChannel() override;
  SshChannel(const SshChannel&) = delete;
  SshChannel& operator=(const SshChannel&) = delete;

  enum class Opened { kYes, kRefused };
  Result<Opened> open(Deadline deadline);

  Result<std::size_t> read(std::span<char> buffer, Deadline deadline) override;
  Result<void> write(std::string_view data, Deadline deadline) override;
  Result<void> close_stdin() override;
  Result<Exit> wait(Deadline deadline) override;
  std::string standard_error() const override { return err_.text(); }

 private:
  void take_stderr();
  // What libssh has of standard output, without waiting: bytes, 0 for none yet, or nothing at EOF.
  Result<std::optional<std::size_t>> take_stdout(std::span<char> buffer);
  Result<void> read_ahead();

  SshHost& host_;
  std::string command_;
  SshChannelHandle channel_;
  ssh_channel_callbacks_struct callbacks_{};
  std::string ahead_;         // Output that came while write() waited.
  std::size_t ahead_at_ = 0;  // How much of it read() has handed out.
  Tail err_;
  std::optional<int> exit_code_;
  std::string exit_signal_;
};

class SshHost : public RemoteHost {
 public:
  SshHost(const Host& host, SshTarget target, Transport transport, const SshOptions& options,
          std::stop_token stop)
      : name_(host.name),
        target_(std::move(target)),
        keepalive_after_(options.keepalive_after),
        proxy_(std::move(transport.proxy)),
        fd_(std::move(transport.fd)),
        stop_fd_(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0)),
        stop_(std::move(stop)),
        on_stop_(stop_, [this] { ::shutdown(stop_fd_.get(), SHUT_RDWR); }) {}
  ~SshHost() override {
    NoSigPipe quiet;
    if (session_ && ssh_is_connected(session_.get()) != 0) ssh_disconnect(session_.get());
    event_.reset();
    session_.reset();
  }
  SshHost(const SshHost&) = delete;
  SshHost& operator=(const SshHost&) = delete;

  // A connection that a busy server dropped before it said anything can be tried again.
  struct HandshakeFailure {
    ConnectError error;
    bool dropped = false;
  };
  std::optional<HandshakeFailure> shake_hands(const KnownHosts& known, SshKeyStore& keys,
                                              const SshOptions& options, Deadline deadline);

  Result<std::unique_ptr<Channel>> exec(std::string_view command, Deadline deadline) override;
  bool alive() const override {
    return !stop_.stop_requested() && session_ && ssh_is_connected(session_.get()) != 0;
  }

  // While a session or a channel is set up, sshd still has Nagle's algorithm on: it holds its
  // second small message back until the first is acknowledged, and Linux would delay that by 40 ms
  // to spare a packet. The kernel forgets this by itself, so it is said again before every wait.
  void acknowledge_at_once() const {
    int on = 1;
    ::setsockopt(stop_fd_.get(), IPPROTO_TCP, TCP_QUICKACK, &on, sizeof on);
  }

  // For the session's channels.
  ssh_session session() const { return session_.get(); }
  const std::string& name() const { return name_; }
  // Handles what arrives, waiting for it until the deadline at most. True: something may have
  // changed. An error if the session is lost or stopped; the deadline's passing is `false`.
  Result<bool> pump(Deadline deadline);
  // Why the session is no more.
  tl::unexpected<Error> lost() const;
  void channel_closed() { had_channel_ = true; }

 private:
  std::optional<HandshakeFailure> negotiate(const std::vector<KnownKey>& on_record,
                                            const SshOptions& options, Deadline deadline);
  HandshakeFailure handshake_error(bool banner_seen, Deadline::Clock::time_point start) const;
  Result<void> wait_for_socket(Deadline deadline);
  ConnectError cancelled() const {
    return connect_failure(ConnectFailure::kCancelled,
                           {fmt::format("interrupted while connecting to {}", name_), {}});
  }

  std::string name_;
  SshTarget target_;
  milliseconds keepalive_after_;
  std::unique_ptr<ProxyProcess> proxy_;
  UniqueFd fd_;  // Until libssh owns it.
  UniqueFd stop_fd_;
  std::stop_token stop_;
  std::stop_callback<std::function<void()>> on_stop_;
  SshSession session_;
  SshEvent event_;
  Deadline::Clock::time_point last_heard_ = Deadline::Clock::now();
  bool had_channel_ = false;
};

// Waits for the session's own socket, for calls that said SSH_AGAIN.
Result<void> SshHost::wait_for_socket(Deadline deadline) {
  if (stop_.stop_requested()) return fail("interrupted");
  if (deadline.passed()) return fail("time is up");
  acknowledge_at_once();
  pollfd fd{.fd = stop_fd_.get(), .events = POLLIN, .revents = 0};
  if ((ssh_get_poll_flags(session_.get()) & SSH_WRITE_PENDING) != 0) fd.events |= POLLOUT;
  ::poll(&fd, 1, deadline.poll_timeout());
  if (stop_.stop_requested()) return fail("interrupted");
  return {};
}

SshHost::HandshakeFailure SshHost::handshake_error(bool banner_seen,
                                                   Deadline::Clock::time_point start) const {
  if (stop_.stop_requested()) return {cancelled(), false};
  std::string at = fmt::format("{} port {}", name_, target_.port);
  std::string why = ssh_get_error(session_.get());
  if (proxy_) {
    std::string words = proxy_->last_words();
    // The jump host's own refusals and ours look alike; its last line tells them apart.
    bool overloaded = words.find("closed by") != std::string::npos ||
                      words.find("kex_exchange_identification") != std::string::npos;
    if (!words.empty()) {
      return {
          connect_failure(ConnectFailure::kUnreachable,
                          {fmt::format("the way to {} through its proxy failed: {}", name_, words),
                           "try it by hand: ssh " + name_}),
          overloaded};
    }
  }
  if (why.find("kex error") != std::string::npos ||
      why.find("no match for method") != std::string::npos) {
    return {
        connect_failure(ConnectFailure::kUnreachable,
                        {fmt::format("{} and this program have no common algorithm: {}", at, why),
                         "it may be very old or very restricted; compare with ssh -vv " + name_}),
        false};
  }
  if (!banner_seen) {
    // "Exceeded MaxStartups" comes in place of the banner; then, or without a word, it hangs up.
    return {
        connect_failure(
            ConnectFailure::kUnreachable,
            {fmt::format("{} closed the connection before its SSH banner, after {:.1f} s", at,
                         seconds_since(start)),
             "its sshd may be overloaded (MaxStartups), or refuse this address (its log says)"}),
        true};
  }
  // Dropped between banner and keys: sshd forks after it has counted, so an overloaded one may do
  // this too.
  bool hung_up = why.find("disconnected") != std::string::npos ||
                 why.find("reset") != std::string::npos || why.find("EOF") != std::string::npos;
  return {connect_failure(ConnectFailure::kUnreachable,
                          {fmt::format("the SSH handshake with {} failed: {}", at,
                                       hung_up ? "it closed the connection" : why),
                           {}}),
          hung_up};
}

std::optional<SshHost::HandshakeFailure> SshHost::negotiate(const std::vector<KnownKey>& on_record,
                                                            const SshOptions& options,
                                                            Deadline deadline) {
  session_.reset(ssh_new());
  ssh_session session = session_.get();
  int fd = fd_.get();
  int on = 1;
  int off = 0;
  unsigned port = target_.port;
  bool process_config = false;
  std::string algorithms = host_key_algorithms(on_record);
  std::string folder = (options.locations.home / ".ssh").string();
  // Everything of the configuration is known already. The files named here keep libssh from
  // looking for others: it would search the user's known_hosts for preferred algorithms.
  bool set =
      ssh_options_set(session, SSH_OPTIONS_PROCESS_CONFIG, &process_config) == SSH_OK &&
      ssh_options_set(session, SSH_OPTIONS_SSH_DIR, folder.c_str()) == SSH_OK &&
      ssh_options_set(session, SSH_OPTIONS_HOST, target_.host_name.c_str()) == SSH_OK &&
      ssh_options_set(session, SSH_OPTIONS_PORT, &port) == SSH_OK &&
      ssh_options_set(session, SSH_OPTIONS_USER, target_.user.c_str()) == SSH_OK &&
      ssh_options_set(session, SSH_OPTIONS_KNOWNHOSTS, "/dev/null") == SSH_OK &&
      ssh_options_set(session, SSH_OPTIONS_GLOBAL_KNOWNHOSTS, "/dev/null") == SSH_OK &&
      ssh_options_set(session, SSH_OPTIONS_STRICTHOSTKEYCHECK, &on) == SSH_OK &&
      // Without this 8 MiB took 7.8 s instead of 0.2 s. Our own sockets have TCP_NODELAY already.
      ssh_options_set(session, SSH_OPTIONS_NODELAY, &on) == SSH_OK &&
      ssh_options_set(session, SSH_OPTIONS_KEY_EXCHANGE, kKeyExchange) == SSH_OK &&
      ssh_options_set(session, SSH_OPTIONS_CIPHERS_C_S, kCiphers) == SSH_OK &&
      ssh_options_set(session, SSH_OPTIONS_CIPHERS_S_C, kCiphers) == SSH_OK &&
      ssh_options_set(session, SSH_OPTIONS_HOSTKEYS, algorithms.c_str()) == SSH_OK &&
      ssh_options_set(session, SSH_OPTIONS_GSSAPI_AUTH, &off) == SSH_OK &&
      // The descriptor and the host: with only the descriptor, libssh has no name to work with.
      ssh_options_set(session, SSH_OPTIONS_FD, &fd) == SSH_OK;
  if (!set) {
    return HandshakeFailure{connect_failure(ConnectFailure::kUnreachable,
                                            {fmt::format("cannot set up an SSH session for {}: {}",
                                                         name_, ssh_get_error(session)),
                                             {}}),
                            false};
  }
  fd_.release();  // libssh closes it.
  ssh_set_blocking(session, 0);

  auto start = Deadline::Clock::now();
  Deadline banner_deadline = Deadline::after(std::min(options.banner_patience, deadline.left()));
  bool banner_seen = false;
  for (;;) {
    int rc = ssh_connect(session);
    banner_seen = banner_seen || ssh_get_serverbanner(session) != nullptr;
    // libssh sets the socket back to blocking at its first event, even one that it was given; then
    // a peer that stops reading would block a write for ever.
    ::fcntl(stop_fd_.get(), F_SETFL, ::fcntl(stop_fd_.get(), F_GETFL) | O_NONBLOCK);
    if (rc == SSH_OK) return std::nullopt;
    if (rc != SSH_AGAIN) return handshake_error(banner_seen, start);
    if (wait_for_socket(banner_seen ? deadline : banner_deadline)) continue;
    if (stop_.stop_requested()) return HandshakeFailure{cancelled(), false};
    std::string what =
        banner_seen
            ? fmt::format(
                  "{} stopped answering in the middle of the SSH handshake, "
                  "{:.0f} s after the connection",
                  name_, seconds_since(start))
            : fmt::format("{} accepted the connection but sent no SSH banner within {:.0f} s",
                          name_, seconds_since(start));
    std::string help = proxy_ ? "try it by hand: ssh " + name_
                              : fmt::format("is it sshd that listens on port {}?", target_.port);
    return HandshakeFailure{connect_failure(ConnectFailure::kUnreachable, {what, help}), false};
  }
}

std::optional<SshHost::HandshakeFailure> SshHost::shake_hands(const KnownHosts& known,
                                                              SshKeyStore& keys,
                                                              const SshOptions& options,
                                                              Deadline deadline) {
  NoSigPipe quiet;
  if (!stop_fd_) {
    return HandshakeFailure{
        connect_failure(ConnectFailure::kUnreachable,
                        {fmt::format("no file descriptor is left to connect to {}", name_),
                         "raise the limit (ulimit -n) or lower --fanout"}),
        false};
  }
  std::vector<KnownKey> on_record = find_known_keys(
      known, known_host_names(target_.host_name, target_.port, target_.host_key_alias));
  if (auto failure = negotiate(on_record, options, deadline)) return failure;

  // Before anything about us is said.
  ssh_key shown = nullptr;
  if (ssh_get_server_publickey(session_.get(), &shown) != SSH_OK) {
    return HandshakeFailure{connect_failure(ConnectFailure::kHostKey,
                                            {fmt::format("{} showed no host key", name_), {}}),
                            false};
  }
  SshKey server_key(shown);
  const char* type = ssh_key_type_to_char(ssh_key_type(server_key.get()));
  std::string keyscan = "ssh-keyscan -H ";
  if (target_.port != 22) keyscan += fmt::format("-p {} ", target_.port);
  keyscan += shell_quote(target_.host_name);
  HostKeyAnswer answer =
      check_host_key(known, on_record, name_, keyscan, type != nullptr ? type : "",
                     public_key_base64(server_key.get()));
  // `StrictHostKeyChecking no` in the user's configuration is the user's word about unknown keys.
  // A changed or revoked key is refused whatever it says.
  bool waived = answer.verdict == HostKeyVerdict::kUnknown && target_.accept_unknown_host_key;
  if (answer.verdict != HostKeyVerdict::kKnown && !waived) {
    return HandshakeFailure{connect_failure(ConnectFailure::kHostKey, answer.error), false};
  }

  SshAuthentication request{.session = session_.get(),
                            .target = target_,
                            .host = name_,
                            .keys = keys,
                            .agent_patience = options.agent_patience,
                            .deadline = deadline,
                            .stop = stop_,
                            .wait = [&]() -> Result<void> {
                              if (auto waited = wait_for_socket(deadline)) return {};
                              return fail("{} stopped answering while {} was logging in", name_,
                                          target_.user);
                            }};
  if (auto done = authenticate(request); !done) {
    if (stop_.stop_requested()) return HandshakeFailure{cancelled(), false};
    return HandshakeFailure{
        connect_failure(deadline.passed() ? ConnectFailure::kUnreachable : ConnectFailure::kAuth,
                        done.error()),
        false};
  }
  event_.reset(ssh_event_new());
  ssh_event_add_session(event_.get(), session_.get());
  last_heard_ = Deadline::Clock::now();
  return std::nullopt;
}

tl::unexpected<Error> SshHost::lost() const {
  if (stop_.stop_requested()) return fail("interrupted while working on {}", name_);
  std::string why = ssh_get_error(session_.get());
  if (why.find("timed out") != std::string::npos) {
    return fail("the connection to {} is lost: it stopped answering", name_);
  }
  if (why.find("reset") != std::string::npos) {
    return fail("the connection to {} is lost: it was reset", name_);
  }
  return fail("the connection to {} is lost: the other side closed it", name_);
}

Result<bool> SshHost::pump(Deadline deadline) {
  if (!alive()) return lost();
  // libssh sends no keepalive of its own, and 0.10 does not export its keepalive request. A message
  // to be ignored does as well: it makes a dead way visible to TCP while nothing else is sent, and
  // keeps firewalls from forgetting the connection.
  auto silence = std::chrono::duration_cast<milliseconds>(Deadline::Clock::now() - last_heard_);
  if (silence >= keepalive_after_) {
    ssh_send_ignore(session_.get(), "");
    last_heard_ = Deadline::Clock::now();
    silence = milliseconds(0);
  }
  if (deadline.passed()) {
    ssh_event_dopoll(event_.get(), 0);
    return alive() ? Result<bool>(false) : Result<bool>(lost());
  }
  auto started = Deadline::Clock::now();
  int timeout = deadline.poll_timeout(keepalive_after_ - silence);
  int rc = ssh_event_dopoll(event_.get(), timeout);
  if (!alive() || rc == SSH_ERROR) return lost();
  // dopoll does not say whether anything came; if it used up its time, nothing did.
  if (Deadline::Clock::now() - started < milliseconds(timeout))
    last_heard_ = Deadline::Clock::now();
  return true;
}

Result<std::unique_ptr<Channel>> SshHost::exec(std::string_view command, Deadline deadline) {
  NoSigPipe quiet;
  // With MaxSessions 1 a channel is refused until the server has seen the end of the one before.
  Deadline patience = Deadline::after(std::min(deadline.left(), milliseconds(5'000)));
  StopWait waiter(stop_);
  for (milliseconds pause{10};; pause = std::min(pause * 2, milliseconds(200))) {
    auto channel = std::make_unique<SshChannel>(*this, std::string(command));
    DSI_TRY(SshChannel::Opened opened, channel->open(deadline));
    if (opened == SshChannel::Opened::kYes) return channel;
    if (!had_channel_ || patience.passed()) {
      return fail_with_help(
          fmt::format("{} refuses to run a command: {}", name_, ssh_get_error(session_.get())),
          "its sshd_config may forbid it (MaxSessions 0, ForceCommand, a "
          "restricted key)");
    }
    channel.reset();
    DSI_CHECK(pump(Deadline::after(pause)));
    waiter.wait({}, Deadline::after(pause));
  }
}

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

}  // namespace

struct SshConnector::Shared {
  explicit Shared(SshOptions given)
      : options(std::move(given)), gate(options.handshakes_per_server) {}

  SshOptions options;
  HandshakeGate gate;
  SshKeyStore keys;

  // Read by the first connect(), then shared. An error is kept as well: it is everybody's.
  std::once_flag config_once;
  std::optional<Result<SshConfig>> config;

  std::mutex known_mutex;
  std::map<std::string, std::shared_ptr<const Result<KnownHosts>>> known;

  const Result<SshConfig>& read_config() {
    std::call_once(config_once, [this] { config = SshConfig::read(options.locations); });
    return *config;
  }

  std::shared_ptr<const Result<KnownHosts>> read_known_hosts(const SshTarget& target) {
    std::string name;
    for (const auto* files : {&target.known_hosts_files, &target.revoked_keys_files}) {
      for (const std::string& file : *files) name += file + "\n";
      name += "\n";
    }
    std::lock_guard lock(known_mutex);
    auto& slot = known[name];
    if (!slot) {
      slot = std::make_shared<const Result<KnownHosts>>(
          KnownHosts::read(target.known_hosts_files, target.revoked_keys_files));
    }
    return slot;
  }
};

SshConnector::SshConnector(SshOptions options) {
  // libssh counts; the library's own constructor has called it before. libssh uses pthreads by
  // itself since 0.8, so sessions of different threads need nothing more.
  ssh_init();
  shared_ = std::make_unique<Shared>(std::move(options));
}

SshConnector::~SshConnector() {
  shared_.reset();
  ssh_finalize();
}

tl::expected<std::unique_ptr<RemoteHost>, ConnectError> SshConnector::connect(
    const Host& host, Deadline deadline, std::stop_token stop) {
  auto give_up = [&](ConnectFailure kind, Error error) {
    if (stop.stop_requested()) {
      kind = ConnectFailure::kCancelled;
      error = {fmt::format("interrupted while connecting to {}", host.name), {}};
    }
    return tl::unexpected<ConnectError>(connect_failure(kind, std::move(error)));
  };
  const Result<SshConfig>& config = shared_->read_config();
  if (!config) return give_up(ConnectFailure::kUnreachable, config.error());
  auto target = config->resolve(host, deadline, stop);
  if (!target) return give_up(ConnectFailure::kUnreachable, target.error());
  auto known = shared_->read_known_hosts(*target);
  if (!known->has_value()) return give_up(ConnectFailure::kHostKey, known->error());
  if (target->connect_timeout && *target->connect_timeout < deadline.left()) {
    deadline = Deadline::after(*target->connect_timeout);
  }

  std::string lane = target->proxy_command.empty()
                         ? fmt::format("{}:{}", target->host_name, target->port)
                         : target->proxy_key;
  std::minstd_rand jitter(std::random_device{}());
  StopWait waiter(stop);
  for (int attempt = 1;; ++attempt) {
    std::optional<SshHost::HandshakeFailure> failure;
    {
      HandshakeGate::Pass pass = shared_->gate.enter(lane, deadline, stop);
      if (!pass) {
        return give_up(ConnectFailure::kUnreachable,
                       {fmt::format("no turn came to connect to {}: too many handshakes with {} at "
                                    "once",
                                    host.name, lane),
                        {}});
      }
      auto transport = open_transport(*target, host.name, deadline, stop);
      if (!transport) return give_up(ConnectFailure::kUnreachable, transport.error());
      auto session =
          std::make_unique<SshHost>(host, *target, *std::move(transport), shared_->options, stop);
      failure = session->shake_hands(**known, shared_->keys, shared_->options, deadline);
      if (!failure) return session;
    }
    if (!failure->dropped || attempt == kMostAttempts || deadline.passed()) {
      return give_up(failure->error.kind, failure->error.error);
    }
    // Everybody who was dropped comes back; not all at the same moment.
    shared_->gate.slow_down(lane);
    auto most = std::min(milliseconds(50) * (1 << std::min(attempt, 5)), milliseconds(1'000));
    milliseconds pause(std::uniform_int_distribution<int>(static_cast<int>(most.count()) / 2,
                                                          static_cast<int>(most.count()))(jitter));
    if (pause > deadline.left()) return give_up(failure->error.kind, failure->error.error);
    waiter.wait({}, Deadline::after(pause));
  }
}

}  // namespace dsi

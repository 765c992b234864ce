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
#include <sys/socket.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "orchestrator/adapters/no_sigpipe.h"
#include "orchestrator/adapters/ssh_auth.h"
#include "orchestrator/adapters/ssh_channel.h"
#include "orchestrator/adapters/ssh_connect.h"
#include "orchestrator/adapters/ssh_known_hosts.h"
#include "orchestrator/adapters/ssh_raii.h"
#include "orchestrator/adapters/ssh_session.h"
#include "orchestrator/adapters/stop_wait.h"
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

// Connections that a busy sshd dropped are tried again this often at most.
constexpr int kMostAttempts = 12;

ConnectError connect_failure(ConnectFailure kind, Error error) {
  return {kind, std::move(error)};
}

}  // namespace

SshHost::SshHost(const Host& host, SshTarget target, Transport transport, const SshOptions& options,
                 std::stop_token stop)
    : name_(host.name),
      target_(std::move(target)),
      keepalive_after_(options.keepalive_after),
      proxy_(std::move(transport.proxy)),
      fd_(std::move(transport.fd)),
      stop_fd_(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0)),
      stop_(std::move(stop)),
      on_stop_(stop_, [this] { ::shutdown(stop_fd_.get(), SHUT_RDWR); }) {}

SshHost::~SshHost() {
  NoSigPipe quiet;
  if (session_ && ssh_is_connected(session_.get()) != 0) ssh_disconnect(session_.get());
  event_.reset();
  session_.reset();
}

void SshHost::acknowledge_at_once() const {
  int on = 1;
  ::setsockopt(stop_fd_.get(), IPPROTO_TCP, TCP_QUICKACK, &on, sizeof on);
}

ConnectError SshHost::cancelled() const {
  return connect_failure(ConnectFailure::kCancelled,
                         {fmt::format("interrupted while connecting to {}", name_), {}});
}

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

Result<bool> SshHost::pump(Deadline deadline, int wake) {
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
  // libssh's poll looks at it as long as it is there; what it means is the caller's affair.
  auto ignore = [](socket_t, int, void*) { return 0; };
  if (wake >= 0) ssh_event_add_fd(event_.get(), wake, POLLIN, ignore, nullptr);
  int rc = ssh_event_dopoll(event_.get(), timeout);
  if (wake >= 0) ssh_event_remove_fd(event_.get(), wake);
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

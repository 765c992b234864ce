#include "orchestrator/adapters/ssh_auth.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <thread>

#include "orchestrator/adapters/base64.h"
#include "orchestrator/adapters/stop_wait.h"
#include "orchestrator/base/unique_fd.h"

namespace dsi {
namespace {

// The agent's protocol (draft-miller-ssh-agent): uint32 length, one byte of type, the rest.
constexpr unsigned char kAgentFailure = 5;
constexpr unsigned char kRequestIdentities = 11;
constexpr unsigned char kIdentitiesAnswer = 12;
constexpr std::size_t kLongestAgentMessage = 256 * 1024;

void put_u32(std::string& out, std::size_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(value >> shift & 0xff);
}

void put_string(std::string& out, std::string_view text) {
  put_u32(out, text.size());
  out += text;
}

bool take_u32(std::string_view& in, std::size_t& value) {
  if (in.size() < 4) return false;
  value = 0;
  for (int i = 0; i < 4; ++i) value = value << 8 | static_cast<unsigned char>(in[i]);
  in.remove_prefix(4);
  return true;
}

bool take_string(std::string_view& in, std::string& text) {
  std::size_t size = 0;
  if (!take_u32(in, size) || size > in.size()) return false;
  text = in.substr(0, size);
  in.remove_prefix(size);
  return true;
}

enum class AgentOutcome { kOk, kClosed, kTimeout, kStopped };

// Sends or fetches exactly the bytes asked for.
AgentOutcome transfer(int fd, char* data, std::size_t size, bool sending, StopWait& waiter,
                      Deadline deadline) {
  while (size > 0) {
    ssize_t n = sending ? ::send(fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT)
                        : ::recv(fd, data, size, MSG_DONTWAIT);
    if (n > 0) {
      data += n;
      size -= static_cast<std::size_t>(n);
      continue;
    }
    if (n == 0) return AgentOutcome::kClosed;
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return AgentOutcome::kClosed;
    std::array<pollfd, 1> fds{{{fd, static_cast<short>(sending ? POLLOUT : POLLIN), 0}}};
    switch (waiter.wait(fds, deadline)) {
      case StopWait::Outcome::kReady:
        break;
      case StopWait::Outcome::kTimeout:
        return AgentOutcome::kTimeout;
      case StopWait::Outcome::kStopped:
        return AgentOutcome::kStopped;
    }
  }
  return AgentOutcome::kOk;
}

AgentOutcome send_message(int fd, std::string_view payload, StopWait& waiter, Deadline deadline) {
  std::string message;
  put_string(message, payload);
  return transfer(fd, message.data(), message.size(), true, waiter, deadline);
}

AgentOutcome receive_message(int fd, std::string& payload, StopWait& waiter, Deadline deadline) {
  std::array<char, 4> header{};
  AgentOutcome outcome = transfer(fd, header.data(), header.size(), false, waiter, deadline);
  if (outcome != AgentOutcome::kOk) return outcome;
  std::string_view view(header.data(), header.size());
  std::size_t size = 0;
  take_u32(view, size);
  if (size == 0 || size > kLongestAgentMessage) return AgentOutcome::kClosed;
  payload.resize(size);
  return transfer(fd, payload.data(), size, false, waiter, deadline);
}

struct AgentKey {
  std::string blob;
  std::string comment;
  std::string base64;
};

// Stands between libssh and the agent. libssh waits for its agent without a deadline and offers
// every key in the agent's order; this answers its list request with the keys that we choose, in
// our order, and passes signature requests on with a deadline. It runs in a thread of its own for
// as long as the authentication of one session takes, because libssh blocks on the other end.
class AgentRelay {
 public:
  AgentRelay(std::stop_token stop, std::chrono::milliseconds patience)
      : stop_(std::move(stop)), patience_(patience) {}
  AgentRelay(const AgentRelay&) = delete;
  AgentRelay& operator=(const AgentRelay&) = delete;
  ~AgentRelay() { own_stop_.request_stop(); }

  AgentOutcome open(const std::string& path);  // Connects and fetches the list.
  const std::vector<AgentKey>& keys() const { return keys_; }
  bool timed_out() const { return timed_out_; }

  // What libssh shall see; before offer() nothing. Not while libssh uses the agent.
  void offer(std::vector<AgentKey> keys) { offered_ = std::move(keys); }

  // The descriptor for ssh_set_agent_socket; the caller's to close. Once.
  Result<int> start();

 private:
  void serve(std::stop_token stop);

  std::stop_token stop_;
  std::chrono::milliseconds patience_;
  std::stop_source own_stop_;
  UniqueFd agent_;
  UniqueFd libssh_;
  std::vector<AgentKey> keys_;
  std::vector<AgentKey> offered_;  // Written before libssh asks; the socket orders the accesses.
  std::atomic<bool> timed_out_ = false;
  std::jthread thread_;  // Last: ends before what it uses.
};

AgentOutcome AgentRelay::open(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return AgentOutcome::kClosed;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  StopWait waiter(stop_);
  Deadline deadline = Deadline::after(patience_);
  agent_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!agent_) return AgentOutcome::kClosed;
  // A full backlog (an agent that stopped accepting) is EAGAIN for a Unix socket, and nothing tells
  // when there is room again.
  while (::connect(agent_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    if (errno != EAGAIN && errno != EINTR) return AgentOutcome::kClosed;
    Deadline pause = Deadline::after(std::chrono::milliseconds(20));
    if (waiter.wait({}, pause) == StopWait::Outcome::kStopped) return AgentOutcome::kStopped;
    if (deadline.passed()) return AgentOutcome::kTimeout;
  }
  std::string reply;
  AgentOutcome outcome =
      send_message(agent_.get(), std::string(1, kRequestIdentities), waiter, deadline);
  if (outcome == AgentOutcome::kOk)
    outcome = receive_message(agent_.get(), reply, waiter, deadline);
  if (outcome != AgentOutcome::kOk) return outcome;
  std::string_view rest = reply;
  if (static_cast<unsigned char>(rest[0]) != kIdentitiesAnswer) return AgentOutcome::kOk;
  rest.remove_prefix(1);
  std::size_t count = 0;
  take_u32(rest, count);
  for (std::size_t i = 0; i < count; ++i) {
    AgentKey key;
    if (!take_string(rest, key.blob) || !take_string(rest, key.comment)) break;
    // libssh ends its list at the first key of a kind that it does not know.
    std::string_view blob = key.blob;
    std::string type;
    if (!take_string(blob, type) || ssh_key_type_from_name(type.c_str()) == SSH_KEYTYPE_UNKNOWN) {
      continue;
    }
    key.base64 = encode_base64(key.blob);
    keys_.push_back(std::move(key));
  }
  return AgentOutcome::kOk;
}

Result<int> AgentRelay::start() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return fail_errno(errno, "cannot make a socket pair");
  }
  libssh_.reset(ends[0]);
  thread_ = std::jthread([this] { serve(own_stop_.get_token()); });
  return ends[1];
}

void AgentRelay::serve(std::stop_token own_stop) {
  // Two tokens end this thread: the session's and the destructor's.
  std::stop_callback forward(stop_, [this] { own_stop_.request_stop(); });
  StopWait waiter(std::move(own_stop));
  // libssh's own requests come when it likes; its end is closed when the session goes.
  Deadline whole_run = Deadline::after(std::chrono::hours(24));
  std::string request;
  while (receive_message(libssh_.get(), request, waiter, whole_run) == AgentOutcome::kOk) {
    std::string reply;
    if (static_cast<unsigned char>(request[0]) == kRequestIdentities) {
      reply += static_cast<char>(kIdentitiesAnswer);
      put_u32(reply, offered_.size());
      for (const AgentKey& key : offered_) {
        put_string(reply, key.blob);
        put_string(reply, key.comment);
      }
    } else {
      Deadline deadline = Deadline::after(patience_);
      AgentOutcome outcome = send_message(agent_.get(), request, waiter, deadline);
      if (outcome == AgentOutcome::kOk) {
        outcome = receive_message(agent_.get(), reply, waiter, deadline);
      }
      if (outcome == AgentOutcome::kTimeout) timed_out_ = true;
      if (outcome != AgentOutcome::kOk) reply = std::string(1, kAgentFailure);
    }
    if (send_message(libssh_.get(), reply, waiter, whole_run) != AgentOutcome::kOk) break;
  }
  ::shutdown(libssh_.get(), SHUT_RDWR);  // Wakes libssh if it still waits.
}

bool file_exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

// Says that a passphrase would be needed by being asked for one.
int note_passphrase(const char*, char*, std::size_t, int, int, void* asked) {
  *static_cast<bool*>(asked) = true;
  return -1;
}

std::string public_half(const std::string& path) {
  ssh_key key = nullptr;
  // An OpenSSH private key carries its public half in clear.
  for (const std::string& file : {path + ".pub", path}) {
    if (file_exists(file) && ssh_pki_import_pubkey_file(file.c_str(), &key) == SSH_OK) {
      return public_key_base64(SshKey(key).get());
    }
  }
  return {};
}

// Whether a certificate is for this key. libssh cannot compare the two kinds. On the wire a
// certificate is its type, a nonce, and then the fields of the key, as they follow the type there.
bool certifies(const std::string& certificate_base64, const std::string& key_base64) {
  std::string certificate = decode_base64(certificate_base64);
  std::string key = decode_base64(key_base64);
  std::string_view certificate_fields = certificate;
  std::string_view key_fields = key;
  std::string skipped;
  return take_string(certificate_fields, skipped) && take_string(certificate_fields, skipped) &&
         take_string(key_fields, skipped) && !key_fields.empty() &&
         certificate_fields.starts_with(key_fields);
}

SshKeyFile read_key(const std::string& path, const std::vector<std::string>& certificate_files) {
  SshKeyFile file;
  file.path = path;
  bool public_only =
      path.ends_with(".pub");  // IdentityFile may name the public half of an agent's.
  std::string private_path = public_only ? path.substr(0, path.size() - 4) : path;
  if (!file_exists(private_path)) {
    file.base64 = public_half(private_path);
    return file;
  }
  bool asked = false;
  ssh_key key = nullptr;
  int rc =
      ssh_pki_import_privkey_file(private_path.c_str(), nullptr, note_passphrase, &asked, &key);
  if (rc != SSH_OK) {
    file.state = asked ? SshKeyFile::State::kEncrypted : SshKeyFile::State::kBad;
    file.base64 = public_half(private_path);
    return file;
  }
  file.key.reset(key);
  file.state = SshKeyFile::State::kUsable;
  ssh_key public_key = nullptr;
  if (ssh_pki_export_privkey_to_pubkey(file.key.get(), &public_key) == SSH_OK) {
    file.base64 = public_key_base64(SshKey(public_key).get());
  }
  // <key>-cert.pub, or a CertificateFile made for this key.
  std::vector<std::string> candidates = certificate_files;
  candidates.push_back(private_path + "-cert.pub");
  for (const std::string& candidate : candidates) {
    ssh_key certificate = nullptr;
    if (!file_exists(candidate) ||
        ssh_pki_import_cert_file(candidate.c_str(), &certificate) != SSH_OK) {
      continue;
    }
    SshKey owned(certificate);
    SshKey certified(ssh_key_dup(file.key.get()));
    if (certifies(public_key_base64(certificate), file.base64) &&
        ssh_pki_copy_cert_to_privkey(certificate, certified.get()) == SSH_OK) {
      file.certified = std::move(certified);
      break;
    }
  }
  return file;
}

std::string method_names(int methods) {
  std::string names;
  for (auto [bit, name] : {std::pair{SSH_AUTH_METHOD_PUBLICKEY, "publickey"},
                           std::pair{SSH_AUTH_METHOD_PASSWORD, "password"},
                           std::pair{SSH_AUTH_METHOD_INTERACTIVE, "keyboard-interactive"},
                           std::pair{SSH_AUTH_METHOD_HOSTBASED, "hostbased"},
                           std::pair{SSH_AUTH_METHOD_GSSAPI_MIC, "gssapi-with-mic"}}) {
    if ((static_cast<unsigned>(methods) & bit) == 0) continue;
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  return names;
}

class Attempt {
 public:
  explicit Attempt(const SshAuthentication& request) : request_(request) {}

  Result<void> run();

 private:
  enum class Step { kIn, kNext };
  Result<Step> drive(const std::function<int()>& call);
  Result<Step> try_files(bool configured);
  Result<Step> try_agent();
  tl::unexpected<Error> refused();
  std::string user_at_host() const {
    return fmt::format("{}@{}", request_.target.user, request_.host);
  }

  const SshAuthentication& request_;
  std::vector<std::shared_ptr<const SshKeyFile>> files_;
  std::vector<std::string> tried_;  // base64 of keys offered.
  int offered_ = 0;
  std::string agent_note_;
};

// Calls a libssh function until it has an answer.
Result<Attempt::Step> Attempt::drive(const std::function<int()>& call) {
  for (;;) {
    switch (call()) {
      case SSH_AUTH_SUCCESS:
        return Step::kIn;
      case SSH_AUTH_AGAIN:
        // libssh goes on saying "again" when the server has hung up.
        if (ssh_is_connected(request_.session) == 0) break;
        DSI_CHECK(request_.wait());
        continue;
      case SSH_AUTH_PARTIAL:
        return fail_with_help(
            fmt::format("{} accepted the key of {} but wants more: {}", request_.host,
                        user_at_host(), method_names(ssh_userauth_list(request_.session, nullptr))),
            "let this user in by publickey alone (AuthenticationMethods in its sshd_config)");
      case SSH_AUTH_DENIED:
        return Step::kNext;
      default:
        break;
    }
    if (request_.stop.stop_requested())
      return fail("interrupted while logging in to {}", request_.host);
    // The session lives: what failed is this key (a broken certificate, an agent that refused).
    if (ssh_is_connected(request_.session)) return Step::kNext;
    std::string why = ssh_get_error(request_.session);
    if (why.find("Too many authentication failures") != std::string::npos) {
      return fail_with_help(
          fmt::format("{} refused {} keys for {} and then hung up (MaxAuthTries)", request_.host,
                      offered_, user_at_host()),
          fmt::format("name the right key: `IdentityFile` and `IdentitiesOnly yes` under "
                      "`Host {}` in ~/.ssh/config",
                      request_.host));
    }
    return fail_with_help(fmt::format("{} closed the connection while {} was logging in",
                                      request_.host, request_.target.user),
                          "its own log (journalctl -u ssh) says why");
  }
}

Result<Attempt::Step> Attempt::try_files(bool configured) {
  if (configured != request_.target.identities_configured) return Step::kNext;
  for (const auto& file : files_) {
    if (file->state != SshKeyFile::State::kUsable) continue;
    for (ssh_key key : {file->certified.get(), file->key.get()}) {
      if (key == nullptr) continue;
      ++offered_;
      DSI_TRY(Step step,
              drive([&] { return ssh_userauth_publickey(request_.session, nullptr, key); }));
      if (step == Step::kIn) return step;
    }
    tried_.push_back(file->base64);
  }
  return Step::kNext;
}

Result<Attempt::Step> Attempt::try_agent() {
  const std::string& path = request_.target.agent_socket;
  if (path.empty()) return Step::kNext;
  std::string silent = fmt::format("the ssh agent at {} did not answer within {:.1f} s", path,
                                   std::chrono::duration<double>(request_.agent_patience).count());
  if (request_.keys.agent_is_hung(path)) {
    agent_note_ = silent;
    return Step::kNext;
  }
  AgentRelay relay(request_.stop, std::min(request_.agent_patience, request_.deadline.left()));
  switch (relay.open(path)) {
    case AgentOutcome::kOk:
      break;
    case AgentOutcome::kStopped:
      return fail("interrupted while logging in to {}", request_.host);
    case AgentOutcome::kTimeout:
      request_.keys.mark_agent_hung(path);
      agent_note_ = silent;
      return Step::kNext;
    case AgentOutcome::kClosed:
      agent_note_ = fmt::format("no ssh agent answers at {}", path);
      return Step::kNext;
  }
  std::vector<AgentKey> ours;
  std::vector<AgentKey> others;
  for (const AgentKey& key : relay.keys()) {
    if (std::find(tried_.begin(), tried_.end(), key.base64) != tried_.end()) continue;
    bool configured = std::any_of(files_.begin(), files_.end(), [&](const auto& file) {
      return !file->base64.empty() && file->base64 == key.base64;
    });
    if (configured) {
      ours.push_back(key);
    } else if (!request_.target.identities_only) {
      others.push_back(key);
    }
  }
  ours.insert(ours.end(), others.begin(), others.end());
  if (ours.empty()) return Step::kNext;
  for (const AgentKey& key : ours) tried_.push_back(key.base64);
  offered_ += static_cast<int>(ours.size());
  relay.offer(std::move(ours));
  DSI_TRY(int fd, relay.start());
  UniqueFd agent_end(fd);
  ssh_set_agent_socket(request_.session, agent_end.get());
  auto outcome = drive([&] { return ssh_userauth_agent(request_.session, nullptr); });
  // libssh would keep the descriptor for the life of the session: one for each of many hosts.
  ssh_set_agent_socket(request_.session, SSH_INVALID_SOCKET);
  DSI_TRY(Step step, outcome);
  if (step == Step::kNext && relay.timed_out()) {
    request_.keys.mark_agent_hung(path);
    agent_note_ = silent;
  }
  return step;
}

tl::unexpected<Error> Attempt::refused() {
  std::string methods = method_names(ssh_userauth_list(request_.session, nullptr));
  std::string what = fmt::format("{} does not let {} in", request_.host, request_.target.user);
  what += offered_ == 0 ? ": there is no key to offer"
                        : fmt::format(" with any of {} key{}", offered_, offered_ == 1 ? "" : "s");
  if (!methods.empty()) what += fmt::format(" (it offers {})", methods);
  if (!agent_note_.empty()) what += "; " + agent_note_;
  for (const auto& file : files_) {
    bool in_agent = std::find(tried_.begin(), tried_.end(), file->base64) != tried_.end() &&
                    !file->base64.empty();
    if (file->state == SshKeyFile::State::kEncrypted && !in_agent) {
      return fail_with_help(
          fmt::format("{}; {} is encrypted and not in an ssh agent", what, file->path),
          fmt::format("ssh-add {}", file->path));
    }
  }
  for (const auto& file : files_) {
    if (file->state == SshKeyFile::State::kBad) {
      return fail_with_help(fmt::format("{}; {} cannot be read as a private key", what, file->path),
                            "check its permissions and format: ssh-keygen -y -f " + file->path);
    }
  }
  return fail_with_help(what, fmt::format("ssh-copy-id {} puts your key there; passwords are never "
                                          "asked for",
                                          user_at_host()));
}

Result<void> Attempt::run() {
  for (const std::string& path : request_.target.identity_files) {
    files_.push_back(request_.keys.load(path, request_.target.certificate_files));
  }
  for (auto stage : {+[](Attempt& self) { return self.try_files(true); },
                     +[](Attempt& self) { return self.try_files(false); },
                     +[](Attempt& self) { return self.try_agent(); }}) {
    DSI_TRY(Step step, stage(*this));
    if (step == Step::kIn) return {};
  }
  if (offered_ == 0) {
    // Asked only now: it costs a round trip, and mostly a key has been accepted before. It is how
    // to learn which methods there are, and a host may want no proof at all.
    DSI_TRY(Step step, drive([&] { return ssh_userauth_none(request_.session, nullptr); }));
    if (step == Step::kIn) return {};
  }
  return refused();
}

}  // namespace

std::shared_ptr<const SshKeyFile> SshKeyStore::load(
    const std::string& path, const std::vector<std::string>& certificate_files) {
  std::string name = path;
  for (const std::string& file : certificate_files) name += "\n" + file;
  // Under the lock, so that 64 sessions that start together decode a key once.
  std::lock_guard lock(mutex_);
  auto& slot = keys_[name];
  if (!slot) slot = std::make_shared<const SshKeyFile>(read_key(path, certificate_files));
  return slot;
}

bool SshKeyStore::agent_is_hung(const std::string& socket) const {
  std::lock_guard lock(mutex_);
  return std::find(hung_agents_.begin(), hung_agents_.end(), socket) != hung_agents_.end();
}

void SshKeyStore::mark_agent_hung(const std::string& socket) {
  std::lock_guard lock(mutex_);
  hung_agents_.push_back(socket);
}

Result<void> authenticate(const SshAuthentication& request) {
  return Attempt(request).run();
}

}  // namespace dsi

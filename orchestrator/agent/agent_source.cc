#include "orchestrator/agent/agent_source.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <system_error>
#include <thread>

#include "orchestrator/base/deadline.h"
#include "orchestrator/loader/sha256.h"

namespace dsi::agent {

namespace {

using Digest = std::array<std::uint8_t, kSha256Size>;

// True once the descriptor is ready; an error on it counts as that.
bool wait_for(int fd, short events, Deadline deadline) {
  for (;;) {
    pollfd poll{fd, events, 0};
    int ready = ::poll(&poll, 1, deadline.poll_timeout());
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

bool receive_all(int fd, void* to, std::size_t size, Deadline deadline) {
  auto* at = static_cast<char*>(to);
  while (size > 0) {
    if (!wait_for(fd, POLLIN, deadline)) return false;
    ssize_t n = ::recv(fd, at, size, MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) return false;
    at += n;
    size -= static_cast<std::size_t>(n);
  }
  return true;
}

bool send_all(int fd, std::string_view data, Deadline deadline) {
  while (!data.empty()) {
    if (!wait_for(fd, POLLOUT, deadline)) return false;
    ssize_t n = ::send(fd, data.data(), data.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) return false;
    data.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

std::string hex(const Digest& digest) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (std::uint8_t byte : digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

// The time it takes says nothing about where the two differ.
bool same(const Digest& a, const Digest& b) {
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace

AgentSource::AgentSource(std::string store, std::string digest, std::array<std::uint8_t, 32> key)
    : AgentSource(std::move(store), std::move(digest), key, Limits()) {}

AgentSource::AgentSource(std::string store, std::string digest, std::array<std::uint8_t, 32> key,
                         Limits limits)
    : path_(std::move(store) + "/" + digest + ".lzma"),
      digest_(std::move(digest)),
      key_(key),
      limits_(limits) {}

AgentSource::~AgentSource() {
  std::unique_lock lock(mutex_);
  for (int fd : served_) ::shutdown(fd, SHUT_RDWR);
  ended_.wait(lock, [&] { return served_.empty(); });
}

void AgentSource::serve(UniqueFd connection) {
  int fd = connection.get();
  {
    std::lock_guard lock(mutex_);
    if (served_.size() >= limits_.at_once) return;
    served_.insert(fd);
  }
  (void)connection.release();
  auto end = [this, fd] {
    std::lock_guard lock(mutex_);
    served_.erase(fd);
    ::close(fd);
    // Under the lock: after it nothing of this object may be touched any more.
    ended_.notify_all();
  };
  try {
    std::thread([this, fd, end] {
      answer(fd);
      end();
    }).detach();
  } catch (const std::system_error&) {
    // No thread to be had: the other node asks elsewhere.
    end();
  }
}

void AgentSource::answer(int fd) const {
  const Deadline deadline = Deadline::after(limits_.each);
  struct {
    std::array<char, 4> magic{};
    Digest nonce{};
    Digest digest{};
  } proven;
  static_assert(sizeof proven == 68);
  if (!receive_all(fd, proven.magic.data(), proven.magic.size(), deadline) ||
      std::string_view(proven.magic.data(), proven.magic.size()) != kLoaderMagic) {
    return;
  }
  if (::getrandom(proven.nonce.data(), proven.nonce.size(), 0) !=
      static_cast<ssize_t>(proven.nonce.size())) {
    return;
  }
  std::string_view nonce(reinterpret_cast<const char*>(proven.nonce.data()), proven.nonce.size());
  Digest proof{};
  Digest expected{};
  if (!send_all(fd, nonce, deadline) || !receive_all(fd, proof.data(), proof.size(), deadline) ||
      !receive_all(fd, proven.digest.data(), proven.digest.size(), deadline)) {
    return;
  }
  loader_hmac(key_.data(), &proven, sizeof proven, expected.data());
  if (!same(proof, expected) || hex(proven.digest) != digest_) return;

  UniqueFd file(::open(path_.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      status.st_size <= 0 || status.st_size > UINT32_MAX) {
    return;
  }
  auto left = static_cast<std::uint32_t>(status.st_size);
  const std::array<char, 4> length{static_cast<char>(left >> 24), static_cast<char>(left >> 16),
                                   static_cast<char>(left >> 8), static_cast<char>(left)};
  if (!send_all(fd, {length.data(), length.size()}, deadline)) return;
  std::string buffer(std::size_t{64} * 1024, '\0');
  while (left > 0) {
    ssize_t n = ::read(file.get(), buffer.data(), std::min<std::size_t>(buffer.size(), left));
    if (n < 0 && errno == EINTR) continue;
    // Cut short under our hands: the other node sees that it is not whole.
    if (n <= 0 || !send_all(fd, {buffer.data(), static_cast<std::size_t>(n)}, deadline)) return;
    left -= static_cast<std::uint32_t>(n);
  }
}

}  // namespace dsi::agent

#include "orchestrator/adapters/ssh_connect.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>
#include <vector>

#include "orchestrator/adapters/spawn.h"
#include "orchestrator/adapters/stop_wait.h"

namespace dsi {
namespace {

using std::chrono::milliseconds;

// How long an address may take before the next one is tried beside it (RFC 8305 says 250 ms).
constexpr milliseconds kNextAddressAfter{250};

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;
  int family = 0;
  std::string text;
};

struct Resolution {
  int error = 0;
  int system_error = 0;
  std::vector<Address> addresses;
};

Resolution resolve_now(const std::string& name, std::uint16_t port, int family, int flags) {
  addrinfo hints{};
  hints.ai_family = family;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  Resolution result;
  result.error = ::getaddrinfo(name.c_str(), std::to_string(port).c_str(), &hints, &found);
  result.system_error = errno;
  if (result.error != 0) return result;
  for (addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    Address address;
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.size = entry->ai_addrlen;
    address.family = entry->ai_family;
    std::array<char, NI_MAXHOST> text{};
    ::getnameinfo(entry->ai_addr, entry->ai_addrlen, text.data(), text.size(), nullptr, 0,
                  NI_NUMERICHOST);
    address.text = text.data();
    result.addresses.push_back(std::move(address));
  }
  ::freeaddrinfo(found);
  return result;
}

// getaddrinfo cannot be cancelled, so a thread of its own runs it; one that takes too long is left
// to finish alone, and what it shares with us lives until then.
std::optional<Resolution> resolve_in_time(const std::string& name, std::uint16_t port, int family,
                                          Deadline deadline, std::stop_token stop) {
  Resolution numeric = resolve_now(name, port, family, AI_NUMERICHOST);
  if (numeric.error == 0) return numeric;
  struct Shared {
    std::mutex mutex;
    std::condition_variable_any ready;
    std::optional<Resolution> result;
  };
  auto shared = std::make_shared<Shared>();
  std::thread([shared, name, port, family] {
    Resolution result = resolve_now(name, port, family, AI_ADDRCONFIG);
    // A machine with only loopback has no "configured" address family.
    if (result.error != 0) result = resolve_now(name, port, family, 0);
    std::lock_guard lock(shared->mutex);
    shared->result = std::move(result);
    shared->ready.notify_all();
  }).detach();
  std::unique_lock lock(shared->mutex);
  shared->ready.wait_for(lock, stop, deadline.left(), [&] { return shared->result.has_value(); });
  return shared->result;
}

// Families take turns, beginning with the one that the resolver prefers: a dead first family then
// costs a quarter of a second and not one time-out for each of its addresses.
std::vector<Address> interleave(std::vector<Address> addresses) {
  if (addresses.empty()) return addresses;
  int first_family = addresses[0].family;
  std::vector<Address> first;
  std::vector<Address> second;
  for (Address& address : addresses) {
    (address.family == first_family ? first : second).push_back(std::move(address));
  }
  std::vector<Address> mixed;
  for (std::size_t i = 0; i < std::max(first.size(), second.size()); ++i) {
    if (i < first.size()) mixed.push_back(std::move(first[i]));
    if (i < second.size()) mixed.push_back(std::move(second[i]));
  }
  return mixed;
}

void tune(int fd) {
  int on = 1;
  // Nagle's algorithm against delayed acknowledgements cost a factor of 20 to 50 on uploads. libssh
  // has an option for it too, but applies that only to sockets that it opens itself.
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  // A peer that vanished (power, cable) sends no FIN. Idle: probes after 15 s. In the middle of
  // sending: unacknowledged data for a minute ends the connection. The minute also counts while the
  // peer's window is closed, so it must be longer than a disk may reasonably stall.
  int idle = 15;
  int interval = 5;
  int count = 4;
  unsigned user_timeout = 60'000;
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
  ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_timeout, sizeof user_timeout);
}

tl::unexpected<Error> connect_error(int error, const std::string& name, const std::string& at,
                                    std::uint16_t port) {
  switch (error) {
    case ECONNREFUSED:
      return fail_with_help(fmt::format("connection refused by {} port {}", at, port),
                            fmt::format("is sshd running on {}, and on this port?", name));
    case ENETUNREACH:
    case EHOSTUNREACH:
      return fail_with_help(fmt::format("no route to {}", at),
                            fmt::format("is {} switched on and in a network that this machine "
                                        "reaches?",
                                        name));
    case ETIMEDOUT:
      return fail_with_help(
          fmt::format("{} does not answer on port {}", at, port),
          fmt::format("is {} switched on, and does a firewall drop port {}?", name, port));
    case ECONNRESET:
      return fail("connection to {} port {} was reset", at, port);
    default:
      return fail_errno(error, fmt::format("cannot connect to {} port {}", at, port));
  }
}

Result<UniqueFd> start_connect(const Address& address, const SshTarget& target, bool& done,
                               int& error) {
  UniqueFd fd(::socket(address.family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) {
    error = errno;
    return fail_errno(errno, "cannot open a socket");
  }
  if (!target.bind_address.empty()) {
    Resolution own = resolve_now(target.bind_address, 0, address.family, AI_NUMERICHOST);
    if (own.error != 0 || own.addresses.empty() ||
        ::bind(fd.get(), reinterpret_cast<sockaddr*>(&own.addresses[0].storage),
               own.addresses[0].size) != 0) {
      error = own.error != 0 ? EADDRNOTAVAIL : errno;
      return fail("cannot bind to {}", target.bind_address);
    }
  }
  tune(fd.get());
  done =
      ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) == 0;
  error = done ? 0 : errno;
  return fd;
}

Result<UniqueFd> connect_tcp(const SshTarget& target, const std::string& name, Deadline deadline,
                             std::stop_token stop) {
  auto resolution =
      resolve_in_time(target.host_name, target.port, target.address_family, deadline, stop);
  if (stop.stop_requested()) return fail("interrupted while connecting to {}", name);
  if (!resolution) {
    return fail_with_help(fmt::format("the name {} did not resolve in time", target.host_name),
                          "check the name servers of this machine");
  }
  if (resolution->error != 0) {
    std::string why =
        resolution->error == EAI_SYSTEM
            ? std::strerror(resolution->system_error)  // NOLINT(concurrency-mt-unsafe)
            : ::gai_strerror(resolution->error);
    return fail_with_help(fmt::format("{} does not resolve: {}", target.host_name, why),
                          "check its spelling in the hostfile, or give it a HostName in "
                          "~/.ssh/config");
  }
  std::vector<Address> addresses = interleave(std::move(resolution->addresses));

  StopWait waiter(stop);
  struct Attempt {
    UniqueFd fd;
    const Address* address;
  };
  std::vector<Attempt> attempts;
  std::size_t next = 0;
  int last_error = ETIMEDOUT;
  const Address* last_address = &addresses[0];
  auto describe = [&](const Address& address) {
    return address.text == name ? name : fmt::format("{} ({})", name, address.text);
  };
  Deadline start_next = Deadline::after(milliseconds(0));
  for (;;) {
    if (next < addresses.size() && (attempts.empty() || start_next.passed())) {
      const Address& address = addresses[next++];
      bool done = false;
      int error = 0;
      auto fd = start_connect(address, target, done, error);
      if (done) return fd;
      if (fd && error == EINPROGRESS) {
        attempts.push_back({*std::move(fd), &address});
        start_next = Deadline::after(kNextAddressAfter);
      } else {
        last_error = error;
        last_address = &address;
      }
      continue;
    }
    if (attempts.empty())
      return connect_error(last_error, name, describe(*last_address), target.port);

    std::vector<pollfd> fds;
    for (const Attempt& attempt : attempts) fds.push_back({attempt.fd.get(), POLLOUT, 0});
    bool more = next < addresses.size();
    Deadline until = more && start_next.left() < deadline.left() ? start_next : deadline;
    StopWait::Outcome outcome = waiter.wait(fds, until);
    if (outcome == StopWait::Outcome::kStopped) {
      return fail("interrupted while connecting to {}", name);
    }
    if (outcome == StopWait::Outcome::kTimeout) {
      if (deadline.passed()) {
        return connect_error(ETIMEDOUT, name, describe(*attempts[0].address), target.port);
      }
      continue;
    }
    for (std::size_t i = fds.size(); i-- > 0;) {
      if (fds[i].revents == 0) continue;
      int error = 0;
      socklen_t size = sizeof error;
      ::getsockopt(attempts[i].fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error == 0) return std::move(attempts[i].fd);
      last_error = error;
      last_address = attempts[i].address;
      attempts.erase(attempts.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
}

// We start the command ourselves and not through libssh: its own way leaves a zombie, has no
// deadline, and hides what the command said.
Result<Transport> start_proxy(const SshTarget& target) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return fail_errno(errno, "cannot make a socket pair");
  }
  UniqueFd here(ends[0]);
  UniqueFd there(ends[1]);
  ::fcntl(here.get(), F_SETFL, O_NONBLOCK);  // Ours only: programs expect a blocking stdin.
  UniqueFd err(::memfd_create("proxy-stderr", MFD_CLOEXEC));
  if (!err) return fail_errno(errno, "cannot make a file in memory");
  DSI_TRY(pid_t pid, spawn({.argv = {"/bin/sh", "-c", "exec " + target.proxy_command},
                            .folder = {},
                            .environment = {},
                            .in = there.get(),
                            .out = there.get(),
                            .err = err.get()}));
  Transport transport;
  transport.fd = std::move(here);
  transport.proxy = std::make_unique<ProxyProcess>(pid, std::move(err));
  return transport;
}

}  // namespace

ProxyProcess::~ProxyProcess() {
  end_process_group(pid_);
}

std::string ProxyProcess::last_words() const {
  struct stat status {};
  std::array<char, 4096> buffer{};
  if (::fstat(err_.get(), &status) != 0) return {};
  off_t start = std::max<off_t>(0, status.st_size - static_cast<off_t>(buffer.size()));
  ssize_t n = ::pread(err_.get(), buffer.data(), buffer.size(), start);
  std::string text(buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  text.erase(text.find_last_not_of("\r\n ") + 1);
  std::size_t line = text.find_last_of("\r\n");
  return line == std::string::npos ? text : text.substr(line + 1);
}

Result<Transport> open_transport(const SshTarget& target, const std::string& name,
                                 Deadline deadline, std::stop_token stop) {
  if (!target.proxy_command.empty()) return start_proxy(target);
  DSI_TRY(UniqueFd fd, connect_tcp(target, name, deadline, std::move(stop)));
  Transport transport;
  transport.fd = std::move(fd);
  return transport;
}

HandshakeGate::Pass HandshakeGate::enter(const std::string& key, Deadline deadline,
                                         std::stop_token stop) {
  std::unique_lock lock(mutex_);
  lanes_.try_emplace(key, Lane{.inside = 0, .limit = at_once_});
  Lane& lane = lanes_[key];  // Lanes are never removed, so this stays valid.
  bool free = changed_.wait_for(lock, std::move(stop), deadline.left(),
                                [&] { return lane.inside < lane.limit; });
  if (!free) return {};
  ++lane.inside;
  return {this, key};
}

void HandshakeGate::leave(const std::string& key) {
  std::lock_guard lock(mutex_);
  --lanes_[key].inside;
  changed_.notify_all();
}

void HandshakeGate::slow_down(const std::string& key) {
  std::lock_guard lock(mutex_);
  Lane& lane = lanes_[key];
  lane.limit = std::max(1, lane.limit / 2);
}

}  // namespace dsi

#include "orchestrator/agent/listener.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sodium.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>

namespace dsi::agent {

namespace {

constexpr int kBacklog = 256;
constexpr std::size_t kMostAddresses = 8;

std::string help_for(int error) {
  if (error == EMFILE || error == ENFILE) return "raise the limit on open files (ulimit -n)";
  if (error == EADDRINUSE) return "give more ports with --peer-ports A-B";
  if (error == EACCES) return "give ports from 1024 on with --peer-ports A-B";
  return {};
}

struct Range {
  unsigned first = 0;
  unsigned last = 0;
};

Result<Range> parse_range(const std::string& text) {
  Range range;
  const char* end = text.data() + text.size();
  auto one = std::from_chars(text.data(), end, range.first);
  bool good = one.ec == std::errc() && one.ptr != end && *one.ptr == '-';
  if (good) {
    auto two = std::from_chars(one.ptr + 1, end, range.last);
    good = two.ec == std::errc() && two.ptr == end;
  }
  if (!good || range.first == 0 || range.first > range.last || range.last > 65535) {
    return fail("\"{}\" is no range of ports", text);
  }
  return range;
}

// Sets errno where it fails.
UniqueFd try_port(int family, unsigned port) {
  UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return fd;
  int on = 1;
  int off = 0;
  // The last run's connections may still fade away on this port; a listener there is an error.
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_storage address{};
  socklen_t size = 0;
  if (family == AF_INET6) {
    ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    auto* to = reinterpret_cast<sockaddr_in6*>(&address);
    to->sin6_family = AF_INET6;
    to->sin6_port = htons(static_cast<std::uint16_t>(port));
    size = sizeof *to;
  } else {
    auto* to = reinterpret_cast<sockaddr_in*>(&address);
    to->sin_family = AF_INET;
    to->sin_port = htons(static_cast<std::uint16_t>(port));
    size = sizeof *to;
  }
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::listen(fd.get(), kBacklog) != 0) {
    int error = errno;
    fd.reset();
    errno = error;
  }
  return fd;
}

Result<std::uint16_t> port_of(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return fail_errno(errno, "cannot find out the port");
  }
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

enum class Reach { kNone, kLoopback, kGlobal };

Reach reach_of(const sockaddr* address, std::string& text) {
  char buffer[INET6_ADDRSTRLEN] = {};
  if (address->sa_family == AF_INET) {
    const auto* at = reinterpret_cast<const sockaddr_in*>(address);
    ::inet_ntop(AF_INET, &at->sin_addr, buffer, sizeof buffer);
    text = buffer;
    std::uint32_t host = ntohl(at->sin_addr.s_addr);
    if (host >> 24 == 127) return Reach::kLoopback;
    return host >> 16 == 0xa9fe ? Reach::kNone : Reach::kGlobal;  // 169.254: of the link only.
  }
  if (address->sa_family == AF_INET6) {
    const auto* at = reinterpret_cast<const sockaddr_in6*>(address);
    ::inet_ntop(AF_INET6, &at->sin6_addr, buffer, sizeof buffer);
    text = buffer;
    if (IN6_IS_ADDR_LOOPBACK(&at->sin6_addr)) return Reach::kLoopback;
    return IN6_IS_ADDR_LINKLOCAL(&at->sin6_addr) ? Reach::kNone : Reach::kGlobal;
  }
  return Reach::kNone;
}

// "<client> <port> <server> <port>": the address by which the head reached this node.
std::string address_of_session() {
  const char* session = std::getenv("SSH_CONNECTION");
  std::string_view text = session == nullptr ? "" : session;
  for (int i = 0; i < 2; ++i) {
    std::size_t space = text.find(' ');
    if (space == std::string_view::npos) return {};
    text.remove_prefix(space + 1);
  }
  std::string address(text.substr(0, text.find(' ')));
  in6_addr parsed{};
  bool numeric = ::inet_pton(AF_INET, address.c_str(), &parsed) == 1 ||
                 ::inet_pton(AF_INET6, address.c_str(), &parsed) == 1;
  return numeric ? address : std::string();
}

}  // namespace

Result<Listener> listen_on(const std::string& ports) {
  std::vector<unsigned> order{0};
  if (!ports.empty()) {
    DSI_TRY(Range range, parse_range(ports));
    order.resize(range.last - range.first + 1);
    std::iota(order.begin(), order.end(), range.first);
    for (std::size_t left = order.size(); left > 1; --left) {
      std::swap(order[left - 1], order[randombytes_uniform(static_cast<std::uint32_t>(left))]);
    }
  }
  int error = 0;
  for (unsigned port : order) {
    UniqueFd fd = try_port(AF_INET6, port);
    // Only where there is no IPv6: a port that is taken for it is taken.
    if (!fd && (errno == EAFNOSUPPORT || errno == EADDRNOTAVAIL)) fd = try_port(AF_INET, port);
    if (fd) {
      Listener listener;
      DSI_TRY(listener.port, port_of(fd.get()));
      listener.socket = std::move(fd);
      return listener;
    }
    error = errno;
    if (error == EMFILE || error == ENFILE) break;
  }
  auto failure =
      fail_errno(error, ports.empty() ? "no port for other nodes can be opened"
                                      : fmt::format("none of the ports {} can be opened", ports));
  failure.value().help = help_for(error);
  return failure;
}

std::vector<std::string> own_addresses() {
  std::vector<std::string> found;
  std::vector<std::string> loopback;
  auto add = [](std::vector<std::string>& list, std::string address) {
    if (list.size() < kMostAddresses && std::find(list.begin(), list.end(), address) == list.end())
      list.push_back(std::move(address));
  };
  if (std::string address = address_of_session(); !address.empty()) add(found, address);
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) == 0) {
    std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(first, ::freeifaddrs);
    for (int family : {AF_INET, AF_INET6}) {
      for (const ifaddrs* at = first; at != nullptr; at = at->ifa_next) {
        if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != family ||
            (at->ifa_flags & IFF_UP) == 0) {
          continue;
        }
        std::string text;
        Reach reach = reach_of(at->ifa_addr, text);
        if (reach == Reach::kGlobal) add(found, text);
        if (reach == Reach::kLoopback) add(loopback, text);
      }
    }
  }
  return found.empty() ? loopback : found;
}

Result<UniqueFd> start_connecting(const std::string& address, std::uint16_t port) {
  sockaddr_storage to{};
  socklen_t size = 0;
  auto* four = reinterpret_cast<sockaddr_in*>(&to);
  auto* six = reinterpret_cast<sockaddr_in6*>(&to);
  if (::inet_pton(AF_INET, address.c_str(), &four->sin_addr) == 1) {
    four->sin_family = AF_INET;
    four->sin_port = htons(port);
    size = sizeof *four;
  } else if (::inet_pton(AF_INET6, address.c_str(), &six->sin6_addr) == 1) {
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(port);
    size = sizeof *six;
  } else {
    return fail("{} is no numeric address", address);
  }
  UniqueFd fd(::socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) {
    int error = errno;
    auto failure = fail_errno(error, "no connection can be opened");
    failure.value().help = help_for(error);
    return failure;
  }
  int on = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), size) != 0 && errno != EINPROGRESS) {
    return fail_errno(errno, fmt::format("cannot connect to {} port {}", address, port));
  }
  return fd;
}

}  // namespace dsi::agent

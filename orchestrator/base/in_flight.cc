#include "orchestrator/base/in_flight.h"

#include <linux/sockios.h>
#include <linux/tcp.h>  // glibc's tcp_info ends before the delivery rate.
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>

namespace dsi {

double InFlight::most(int socket) {
  constexpr auto kPause = std::chrono::milliseconds(10);
  constexpr double kQueue = 4e-3;  // Seconds beyond the round trips.
  constexpr double kLeast = 16 << 10;
  constexpr double kMost = 8 << 20;
  auto now = std::chrono::steady_clock::now();
  if (now < next_look_) return most_;
  next_look_ = now + kPause;
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return most_ = 0;
  rate_ = static_cast<double>(info.tcpi_delivery_rate);
  double round_trip = static_cast<double>(info.tcpi_min_rtt) * 1e-6;
  double wanted = std::clamp(rate_ * (2 * round_trip + kQueue), kLeast, kMost);
  // The first packets pass through every queue that is still empty, at a rate that says nothing.
  return most_ = std::min(wanted, std::max(kLeast, 2 * most_));
}

void InFlight::keep_short(int socket) {
  auto wanted = static_cast<int>(most(socket));
  // Small changes are not worth a system call.
  if (wanted == 0 || (wanted > buffer_ * 3 / 4 && wanted < buffer_ * 5 / 4)) return;
  if (::setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &wanted, sizeof wanted) == 0) buffer_ = wanted;
}

std::chrono::milliseconds InFlight::pause(int socket) {
  double allowed = most(socket);
  int queued = 0;
  if (allowed == 0 || ::ioctl(socket, SIOCOUTQ, &queued) != 0 || queued <= allowed) {
    return std::chrono::milliseconds(0);
  }
  double seconds = rate_ > 0 ? (queued - allowed) / rate_ : 0;
  return std::chrono::milliseconds(std::clamp(static_cast<int>(seconds * 1e3), 1, 20));
}

}  // namespace dsi

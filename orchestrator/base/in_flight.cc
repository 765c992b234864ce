#include "orchestrator/base/in_flight.h"

#include <linux/sockios.h>
#include <linux/tcp.h>  // glibc's tcp_info ends before the delivery rate.
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>

namespace dsi {

double InFlight::most(int socket) {
  constexpr auto kPause = std::chrono::milliseconds(40);
  constexpr double kQueue = 4e-3;  // Seconds beyond the round trips.
  constexpr double kLeast = 16 << 10;
  constexpr double kMost = 8 << 20;
  auto now = std::chrono::steady_clock::now();
  std::chrono::duration<double> since = now - looked_;
  if (since < kPause) return most_;
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return most_ = 0;
  // The kernel's rate is that of the best moment: a few packets that pass through queues that are
  // empty, or that a traffic shaper lets through at once. Twice what really got there since the
  // last look bounds it, and still doubles in each look where there is room.
  double through = static_cast<double>(info.tcpi_bytes_acked - acked_) / since.count();
  double rate = std::min(static_cast<double>(info.tcpi_delivery_rate), 2 * through);
  looked_ = now;
  acked_ = info.tcpi_bytes_acked;
  double round_trip = static_cast<double>(info.tcpi_min_rtt) * 1e-6;
  return most_ = std::clamp(rate * (2 * round_trip + kQueue), kLeast, kMost);
}

void InFlight::keep_short(int socket) {
  // The kernel doubles what it is told, for its own overhead, of which there is little here.
  auto wanted = static_cast<int>(most(socket)) / 2;
  // Small changes are not worth a system call.
  if (wanted == 0 || (wanted > buffer_ * 3 / 4 && wanted < buffer_ * 5 / 4)) return;
  if (::setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &wanted, sizeof wanted) == 0) buffer_ = wanted;
}

std::chrono::milliseconds InFlight::pause(int socket) {
  // More than for a socket of ours: time passes until we look again.
  double allowed = 2 * most(socket);
  int queued = 0;
  if (allowed == 0 || ::ioctl(socket, SIOCOUTQ, &queued) != 0 || queued <= allowed) {
    return std::chrono::milliseconds(0);
  }
  // Not as long as the rate says: that is the rate so far, and who waits for it never finds out
  // that others have left the link.
  return std::chrono::milliseconds(1);
}

}  // namespace dsi

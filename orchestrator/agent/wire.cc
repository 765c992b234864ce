#include "orchestrator/agent/wire.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>

#include "orchestrator/base/file.h"

namespace dsi::agent {

bool Wire::fill() {
  char buffer[128 * 1024];
  for (;;) {
    ssize_t n = ::read(in_, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      left_ = true;
      return false;
    }
    reader_.feed({buffer, static_cast<std::size_t>(n)});
    return true;
  }
}

Result<std::optional<protocol::Frame>> Wire::read() {
  for (;;) {
    protocol::Frame frame;
    DSI_TRY(bool whole, reader_.next(frame));
    if (whole) return frame;
    if (left_ || !fill()) return std::nullopt;
  }
}

bool Wire::send(std::string_view type, nlohmann::json body) {
  if (!write_all(out_, protocol::json_frame(type, std::move(body)))) left_ = true;
  return !left_;
}

bool Wire::head_left(std::chrono::milliseconds wait) {
  if (left_) return true;
  pollfd poll_in{in_, POLLIN, 0};
  if (::poll(&poll_in, 1, static_cast<int>(wait.count())) > 0 && poll_in.revents != 0) fill();
  return left_;
}

}  // namespace dsi::agent

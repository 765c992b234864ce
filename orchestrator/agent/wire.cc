#include "orchestrator/agent/wire.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>

#include "orchestrator/base/file.h"

namespace dsi::agent {

using protocol::Frame;

namespace {

constexpr std::size_t kMostWaiting = 4u << 20;
// No "listen" is longer, and no other message of the head needs to be looked into twice.
constexpr std::size_t kLongestListen = 4096;

}  // namespace

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

// The next whole frame that is not "listen". False: there is none yet, or somebody else reads now.
Result<bool> Wire::take_own(Frame& frame) {
  DSI_TRY(bool whole, reader_.next(frame));
  if (!whole || !take_over_ || frame.type != 'J' || frame.payload.size() > kLongestListen ||
      frame.payload.find("\"listen\"") == std::string::npos) {
    return whole;
  }
  auto message = protocol::read_message(frame);
  if (!message || message->type != "listen") return true;
  exchange_ = take_over_(*message, reader_);
  return exchange_ != nullptr ? false : take_own(frame);
}

Result<std::optional<Frame>> Wire::read() {
  if (!early_.empty()) {
    Frame frame = std::move(early_.front());
    early_.pop_front();
    return frame;
  }
  while (exchange_ == nullptr) {
    Frame frame;
    DSI_TRY(bool whole, take_own(frame));
    if (whole) return frame;
    if (exchange_ == nullptr && (left_ || !fill())) return std::nullopt;
  }
  return read_delivered();
}

Result<std::optional<Frame>> Wire::read_delivered() {
  std::function<void()> ready;
  Frame frame;
  {
    std::unique_lock lock(mutex_);
    news_.wait(lock, [&] { return !delivered_.empty() || broken_ || left_; });
    if (delivered_.empty()) {
      if (broken_) return tl::unexpected<Error>(*broken_);
      return std::nullopt;
    }
    bool was_full = delivered_bytes_ > kMostWaiting;
    frame = std::move(delivered_.front());
    delivered_.pop_front();
    delivered_bytes_ -= frame.payload.size();
    if (was_full && delivered_bytes_ <= kMostWaiting) ready = ready_;
  }
  if (ready) ready();
  return frame;
}

bool Wire::send(std::string_view type, nlohmann::json body) {
  std::string frame = protocol::json_frame(type, std::move(body));
  std::lock_guard lock(sending_);
  if (!write_all(out_, frame)) deliver_end();
  return !left_;
}

bool Wire::head_left(std::chrono::milliseconds wait) {
  if (left_) return true;
  if (exchange_ != nullptr) {
    std::unique_lock lock(mutex_);
    std::uint64_t before = deliveries_;
    news_.wait_for(lock, wait, [&] { return left_ || deliveries_ != before; });
    return left_;
  }
  pollfd poll_in{in_, POLLIN, 0};
  if (::poll(&poll_in, 1, static_cast<int>(wait.count())) > 0 && poll_in.revents != 0 && fill()) {
    // A "listen" is to be obeyed whatever the main flow is busy with.
    Frame frame;
    for (;;) {
      auto whole = take_own(frame);
      // An error comes again, from read().
      if (!whole || !*whole) break;
      early_.push_back(std::move(frame));
    }
  }
  return left_;
}

void Wire::deliver(Frame frame) {
  std::lock_guard lock(mutex_);
  delivered_bytes_ += frame.payload.size();
  delivered_.push_back(std::move(frame));
  ++deliveries_;
  news_.notify_all();
}

void Wire::deliver_end() {
  std::lock_guard lock(mutex_);
  left_ = true;
  news_.notify_all();
}

void Wire::deliver_error(Error error) {
  std::lock_guard lock(mutex_);
  broken_ = std::move(error);
  ++deliveries_;
  news_.notify_all();
}

bool Wire::is_full() const {
  std::lock_guard lock(mutex_);
  return delivered_bytes_ > kMostWaiting;
}

void Wire::on_drained(std::function<void()> ready) {
  std::lock_guard lock(mutex_);
  ready_ = std::move(ready);
}

}  // namespace dsi::agent

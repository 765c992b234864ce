#pragma once

// The agent's end of the stream to the head: frames in, frames out.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string_view>

#include "orchestrator/agent/protocol.h"

namespace dsi::agent {

class Exchange;

// read(), head_left() and fill belong to the main thread; send() to everybody. With the first
// "listen" another thread (exchange.h) takes over the reading and hands on what is not its own.
class Wire {
 public:
  Wire(int in, int out) : in_(in), out_(out) {}

  // The next frame. Nothing: the head is gone, in whatever way. An error: the stream is out of
  // step, and stays so.
  Result<std::optional<protocol::Frame>> read();

  // False once the head is gone.
  bool send(std::string_view type, nlohmann::json body);

  // Waits at most that long for the head to say something or to leave; true if it has left. What it
  // says is kept for read().
  bool head_left(std::chrono::milliseconds wait = std::chrono::milliseconds(0));

  // Called on the main thread with the first "listen" and with what was read and is after it, which
  // is the callee's then; or it returns nullptr and leaves that alone.
  using TakeOver = std::function<Exchange*(const protocol::Message&, protocol::FrameReader&)>;
  void on_listen(TakeOver take_over) { take_over_ = std::move(take_over); }
  // Who has taken over; nullptr: nobody.
  Exchange* exchange() const { return exchange_; }

  // For who has taken over.
  int in() const { return in_; }
  void deliver(protocol::Frame frame);
  void deliver_end();
  void deliver_error(Error error);
  // More is waiting for read() than should be; `ready` is called once that has changed.
  bool is_full() const;
  void on_drained(std::function<void()> ready);

 private:
  bool fill();  // False at the end of the stream.
  Result<bool> take_own(protocol::Frame& frame);
  Result<std::optional<protocol::Frame>> read_delivered();

  int in_;
  int out_;
  std::mutex sending_;
  std::atomic<bool> left_ = false;
  protocol::FrameReader reader_;
  std::deque<protocol::Frame> early_;  // Read by head_left(), for read().
  TakeOver take_over_;
  Exchange* exchange_ = nullptr;

  mutable std::mutex mutex_;  // For what is below.
  std::condition_variable news_;
  std::deque<protocol::Frame> delivered_;
  std::size_t delivered_bytes_ = 0;
  std::uint64_t deliveries_ = 0;
  std::optional<Error> broken_;
  std::function<void()> ready_;
};

}  // namespace dsi::agent

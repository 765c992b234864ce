#pragma once

// The agent's end of the stream to the head: frames in, frames out.

#include <chrono>
#include <optional>
#include <string_view>

#include "orchestrator/agent/protocol.h"

namespace dsi::agent {

// Belongs to the one thread that the agent has.
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

 private:
  bool fill();  // False at the end of the stream.

  int in_;
  int out_;
  bool left_ = false;
  protocol::FrameReader reader_;
};

}  // namespace dsi::agent

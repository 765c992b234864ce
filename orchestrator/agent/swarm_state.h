#pragma once

// What the two directions of an exchange know in common. Belongs to the exchange's thread.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "orchestrator/agent/incoming.h"
#include "orchestrator/agent/peer_link.h"

namespace dsi::agent {

using Clock = std::chrono::steady_clock;
using Moment = Clock::time_point;

inline constexpr std::chrono::seconds kPingEvery{1};
inline constexpr std::chrono::seconds kSilence{3};    // From a parent, after which it is given up.
inline constexpr std::chrono::seconds kDeafness{10};  // From a child, likewise.
inline constexpr std::chrono::seconds kHandshakeTime{3};

struct SwarmState {
  std::uint32_t self = 0;
  std::optional<RunKey> key;
  std::shared_ptr<Incoming> stream;  // None before "swarm" and after the end of it.
  std::uint64_t received = 0;        // Bytes of right chunks from other nodes.
  std::uint64_t sent = 0;

  bool has_index() const { return stream && stream->has_index(); }
  // The payload of our kHello.
  std::string hello() const {
    const auto& digest = stream->digest();
    return number_bytes(self) +
           std::string(reinterpret_cast<const char*>(digest.data()), digest.size());
  }
};

}  // namespace dsi::agent

#pragma once

// Passes this program on to nodes that do not have it yet: the other end of loader/peer.h.

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include "orchestrator/base/unique_fd.h"

namespace dsi::agent {

inline constexpr std::string_view kLoaderMagic = "DSL1";

// Thread-safe. Each connection is served in a thread of its own, so that one that is slow keeps
// nobody else waiting; whoever does not take the agent in time is cut off.
class AgentSource {
 public:
  struct Limits {
    std::size_t at_once = 4;  // More are hung up on; the head sends at most two to one node.
    std::chrono::milliseconds each{60'000};
  };

  // `store` is <prefix>/store, where the loader left <digest>.lzma.
  AgentSource(std::string store, std::string digest, std::array<std::uint8_t, 32> key);
  AgentSource(std::string store, std::string digest, std::array<std::uint8_t, 32> key,
              Limits limits);
  // Cuts off whoever is being served and waits for the threads.
  ~AgentSource();
  AgentSource(const AgentSource&) = delete;
  AgentSource& operator=(const AgentSource&) = delete;

  // A connection whose first four bytes, not yet read, are kLoaderMagic. Returns at once.
  void serve(UniqueFd connection);

 private:
  void answer(int fd) const;

  const std::string path_;
  const std::string digest_;
  const std::array<std::uint8_t, 32> key_;
  const Limits limits_;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::set<int> served_;  // Descriptors; each is closed under the lock by its own thread.
};

}  // namespace dsi::agent

#pragma once

// The head's end of a conversation with the agent on one host.

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "orchestrator/agent/protocol.h"
#include "orchestrator/base/deadline.h"
#include "orchestrator/base/result.h"
#include "orchestrator/ports/remote_host.h"

namespace dsi {

// The agent's binary for the nodes, read once for a run. Thread-safe.
class AgentBinary {
 public:
  AgentBinary(std::string digest, std::string bytes)
      : digest_(std::move(digest)), bytes_(std::move(bytes)) {}
  static Result<AgentBinary> load(const std::filesystem::path& path);

  const std::string& digest() const { return digest_; }  // SHA-256
  const std::string& bytes() const { return bytes_; }

  // The same for the wire: every system has gzip, few have zstd. Made for the first host that asks,
  // because most runs meet only hosts that have the agent.
  Result<std::shared_ptr<const std::string>> gzip() const;

 private:
  std::string digest_;
  std::string bytes_;
  struct Compressed {
    std::mutex mutex;
    std::shared_ptr<const std::string> bytes;
  };
  std::shared_ptr<Compressed> compressed_ = std::make_shared<Compressed>();
};

// How to start an agent on a host.
struct AgentStart {
  std::string nonce;   // [0-9a-f]+, new for each host.
  std::string prefix;  // As the user said it; empty: the host's default.
  bool sudo = false;
};

// True if `prefix` may stand in the commands below, which pass through any login shell.
bool is_safe_prefix(std::string_view prefix);

// The command that starts the agent if the host has it, and else prints what the host is
// (DSI0 <nonce>, then key=value lines) and changes nothing.
std::string look_command(const AgentStart& start, const AgentBinary& agent);

// The command that takes the agent from standard input, stores it and starts it. `wire_size` bytes
// come, compressed by gzip or as they are.
std::string bring_command(const AgentStart& start, const AgentBinary& agent, std::size_t wire_size,
                          bool gzip);

// Belongs to one thread at a time.
class AgentLink {
 public:
  // `agent_digest`: of the agent that is expected there; another one counts as none.
  AgentLink(std::unique_ptr<Channel> channel, std::string nonce, std::string agent_digest)
      : channel_(std::move(channel)),
        nonce_(std::move(nonce)),
        agent_digest_(std::move(agent_digest)) {}

  struct Greeting {
    bool agent = false;  // An agent speaks; otherwise only `facts` are known.
    bool gzip = false;   // The host can unpack gzip; said only without an agent.
    protocol::Facts facts;
  };
  // Skips whatever the login shell prints and reads what look_command or bring_command answers.
  Result<Greeting> greet(Deadline deadline);

  Result<void> send_raw(std::string_view bytes, Deadline deadline);
  Result<void> send(std::string_view type, nlohmann::json body, Deadline deadline);
  Result<void> send_data(std::string_view bytes, Deadline deadline);
  Result<protocol::Message> receive(Deadline deadline);
  // The same, but nothing if the descriptor `wake` becomes readable first or the deadline passes.
  Result<std::optional<protocol::Message>> poll(int wake, Deadline deadline);

  std::uint64_t bytes_sent() const { return bytes_sent_; }

 private:
  // More bytes into reader_; false at the end of the stream.
  Result<bool> read_more(Deadline deadline);
  // Why the other side fell silent: its exit code and the tail of what it wrote to stderr.
  Error gone(std::string what);

  std::unique_ptr<Channel> channel_;
  std::string nonce_;
  std::string agent_digest_;
  protocol::FrameReader reader_;
  std::uint64_t bytes_sent_ = 0;
};

}  // namespace dsi

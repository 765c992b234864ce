#pragma once

// The head's end of a conversation with the agent on one host.

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "orchestrator/agent/protocol.h"
#include "orchestrator/base/deadline.h"
#include "orchestrator/base/result.h"
#include "orchestrator/base/sync.h"
#include "orchestrator/distribute/agent_sources.h"
#include "orchestrator/node_facts.h"
#include "orchestrator/ports/remote_host.h"

namespace dsi {

// The agent's binary for the nodes, read once for a run. Thread-safe.
class AgentBinary {
 public:
  struct Files {
    std::filesystem::path agent;
    std::filesystem::path compressed;  // The same as .lzma.
    std::filesystem::path loader;
  };
  // What goes to a host that has no agent.
  struct Wire {
    std::string loader;
    std::string compressed;
    std::string packed_loader = {};  // By gzip: two thirds of it.
  };

  AgentBinary(std::string digest, std::string bytes, Files files = {})
      : digest_(std::move(digest)), bytes_(std::move(bytes)), files_(std::move(files)) {}
  static Result<AgentBinary> load(const Files& files);

  const std::string& digest() const { return digest_; }  // SHA-256
  const std::string& bytes() const { return bytes_; }

  // Read for the first host that asks, because most runs meet only hosts that have the agent.
  Result<std::shared_ptr<const Wire>> wire() const;

 private:
  std::string digest_;
  std::string bytes_;
  Files files_;
  std::shared_ptr<Sync<std::shared_ptr<const Wire>>> wire_ =
      std::make_shared<Sync<std::shared_ptr<const Wire>>>();
};

// ds-facts, which looks at a host that has no agent to ask.
struct FactsProgram {
  std::string digest;  // SHA-256
  std::string arch;    // That it is for, as uname has it.
  std::string bytes;
  static Result<FactsProgram> load(const std::filesystem::path& file);
};

// How to start an agent on a host.
struct AgentStart {
  std::string nonce;   // [0-9a-f]+, new for each host.
  std::string prefix;  // As the user said it; empty: the host's default.
  bool sudo = false;
  bool gzip = false;  // The host has that program.
};

// Where an agent goes that is brought to a host.
enum class AgentPlace {
  kStore,      // <prefix>/store, where later runs find it.
  kOwnFolder,  // A folder that goes with it: to look, before anything on the host is changed.
};

// True if `prefix` may stand in the commands below, which pass through any login shell.
bool is_safe_prefix(std::string_view prefix);

// The command that starts the agent if the host has it, and else prints what the host is
// (DSI0 <nonce>, then key=value lines) and changes nothing.
//
// With `facts` a host without an agent first says what hear_facts() hears. The program comes from
// standard input into a folder of its own that is removed again: the first of several in which a
// program may run, because the prefix may be full or mounted noexec. `torch_folders` are what is
// tried first; a path that the login shell could read wrongly is left out.
std::string look_command(const AgentStart& start, const AgentBinary& agent,
                         const FactsProgram* facts = nullptr,
                         const std::vector<std::string>& torch_folders = {});

// What bring_command's loader comes as: what is to be written to its standard input.
const std::string& loader_for(const AgentStart& start, const AgentBinary::Wire& wire);
// The command that takes the loader from standard input and starts it; loader/main.c says what it
// does and says. Nothing more may be sent before it is ready: the host's `head` may read ahead.
std::string bring_command(const AgentStart& start, const AgentBinary& agent,
                          const AgentBinary::Wire& wire, AgentPlace place = AgentPlace::kStore);

// What the loader can be asked for. The agent's compressed bytes follow the first.
std::string request_from_head();
// A source without an address is reached by nobody. `key`: the run's, in hexadecimal digits.
std::string request_from_host(const distribute::AgentSources::Source& source, std::string_view key);

// Belongs to one thread at a time.
class AgentLink {
 public:
  // `agent_digest`: of the agent that is expected there; another one counts as none.
  AgentLink(std::unique_ptr<Channel> channel, std::string nonce, std::string agent_digest)
      : channel_(std::move(channel)),
        nonce_(std::move(nonce)),
        agent_digest_(std::move(agent_digest)) {}

  struct Greeting {
    bool agent = false;  // An agent speaks; otherwise only the rest is known.
    protocol::Facts facts;
    bool gzip = false;  // The host has that program; said only where no agent speaks.
  };
  // Skips whatever the login shell prints and reads what look_command answers, or what the agent
  // says once a loader has started it.
  Result<Greeting> greet(Deadline deadline);

  // What ds-facts says, before greet(); sends it there if the host asks for it. Nothing: there is
  // an agent, which can be asked. Never an error for a host that answers and cannot be looked at:
  // the facts then say why they are unknown.
  Result<std::optional<NodeFacts>> hear_facts(const FactsProgram& program, Deadline deadline);

  struct LoaderWord {
    enum class Kind {
      kReady,   // It waits for a request.
      kFailed,  // The last one could not be met, for the reason in `text`; it waits for another.
      kAgent,   // The agent runs: greet() is next.
    };
    Kind kind = Kind::kReady;
    std::string text;
  };
  // What the loader says next. An error: it has left, and the error has its reason.
  Result<LoaderWord> hear_loader(Deadline deadline);

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
  // The same into noise_; an error at the end of the stream.
  Result<void> read_noise(Deadline deadline);
  // Why the other side fell silent: its exit code and the tail of what it wrote to stderr.
  Error gone(std::string what);

  std::unique_ptr<Channel> channel_;
  std::string nonce_;
  std::string agent_digest_;
  std::string noise_;    // What came before the greeting.
  bool loader_ = false;  // A loader has spoken.
  protocol::FrameReader reader_;
  std::uint64_t bytes_sent_ = 0;
};

}  // namespace dsi

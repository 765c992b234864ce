#pragma once

// What is done on one host, from the first look to the result. Everything here runs in the thread
// of its host and touches nothing of the others.

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "orchestrator/agent_link.h"
#include "orchestrator/bundle.h"
#include "orchestrator/distribute/agent_sources.h"
#include "orchestrator/options.h"
#include "orchestrator/ports/remote_host.h"
#include "orchestrator/report.h"

namespace dsi {

// Written by the hosts' threads, read by the progress line.
struct Traffic {
  std::atomic<std::uint64_t> bytes_sent{0};
};

// What is the same for all hosts of a run. Outlives every session.
struct RunContext {
  std::string run;  // Id
  std::string by;   // "user@head"
  const Options& options;
  const AgentBinary& agent;
  Connector& connector;
  std::vector<std::string> torch_folders;  // Where this machine has libtorch: hints for the nodes.
  std::stop_token abort;                   // The second ^C.
  Traffic& traffic;
  // Who passes the agent on. Null: every host gets it from here, and nobody is told to listen.
  distribute::AgentSources* agent_sources = nullptr;
  protocol::ListenRequest listen{};  // For every host but for its number. Has the run's key.
};

// A host that answered, its connection held for the run.
struct Session {
  Host host;
  std::unique_ptr<RemoteHost> remote;
  std::unique_ptr<AgentLink> agent;  // Null: the host has no agent (of this version) yet.
  AgentStart start;
  // Where its agent listens, once it was told to: it passes the agent on.
  std::optional<protocol::Listening> listening;
  std::uint32_t number = 0;  // Of the host in the run; what "listen" calls it.
  protocol::Facts facts;
  std::uint64_t bytes_before = 0;  // Sent on channels that are closed.
  std::vector<std::string> transcript;

  std::uint64_t bytes_sent() const { return bytes_before + (agent ? agent->bytes_sent() : 0); }
};

// Why a host cannot be worked on, in the report's words.
struct HostFailure {
  HostStatus status = HostStatus::kFailed;
  Error error;
};

// Connects and looks what the host is. Changes nothing there.
tl::expected<Session, HostFailure> look_at(const Host& host, const RunContext& run);

// The four things that can be done. Each returns a whole row of the report, whatever happens; each
// reconnects once if the session was lost while it waited.
HostReport deploy(Session& session, const Payload& payload, WireFiles& files,
                  const RunContext& run);
HostReport report_on(Session& session, const RunContext& run);
HostReport roll_back(Session& session, const RunContext& run);
HostReport uninstall(Session& session, const RunContext& run);

}  // namespace dsi

#pragma once

// The connection to one host that is held for the run, and the first look through it: what the host
// is, and an agent on it. Everything here runs in the thread of its host and touches nothing of the
// others.

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
#include "orchestrator/distribute/agent_sources.h"
#include "orchestrator/distribute/distributor.h"
#include "orchestrator/distribute/rate_limit.h"
#include "orchestrator/options.h"
#include "orchestrator/ports/remote_host.h"
#include "orchestrator/report.h"

namespace dsi {

// Written by the hosts' threads, read by the progress line.
struct Traffic {
  std::atomic<std::uint64_t> bytes_sent{0};
};

// How the hosts of a run reach each other.
struct Peering {
  std::string key;              // 32 random bytes in hexadecimal digits. In no record.
  bool swarm = false;           // Otherwise every byte goes straight from here to its host.
  bool listen = false;          // There is somebody to serve.
  distribute::RateLimit limit;  // Of what leaves this machine.
  // Who passes the agent on to hosts that have none. Null: every host gets it from here.
  std::unique_ptr<distribute::AgentSources> agent_sources = nullptr;
};

// What is the same for all hosts of a run. Outlives every session.
struct RunContext {
  std::string run;  // Id
  std::string by;   // "user@head"
  const Options& options;
  const AgentBinary& agent;
  Connector& connector;
  // Where this machine has the libtorch that a host's ops are built with: hints for that host.
  // Null: nothing is built.
  std::function<std::vector<std::string>(distribute::PeerId)> torch_folders;
  std::stop_token abort;  // The second ^C.
  Traffic& traffic;
  std::string package = {};  // Normalised name of a Python package; empty: the run is about ops.
  std::vector<std::string> host_names = {};         // By their number in the run.
  std::map<std::string, std::string> targets = {};  // rollback --to: the release, by host.
  std::stop_token drain = {};  // The first ^C: who still waits for something ends its wait.
  std::optional<Deadline::Clock::time_point> closes = {};  // The window: nothing waits longer.
  const FactsProgram* facts = nullptr;  // If the hosts are to be looked at closely.
  // Then by an agent that is brought to those without one, into a folder that goes with it: hosts
  // pass an agent on, and ds-facts would leave here for each. Not for a mere question.
  bool brings_agent = false;
  // As `torch_folders`, for that look; may wait until it is known.
  std::function<std::vector<std::string>(distribute::PeerId)> torch_hints = nullptr;
  Peering* peering = nullptr;                      // Of an install, and of a look before it.
  distribute::Distributor* distributor = nullptr;  // Of an install.

  // How long one piece may take, on either way.
  Deadline stall_deadline() const { return Deadline::after(options.stall_timeout); }
  std::string number_to_name(std::int64_t number) const;
};

// A host that answered, its connection held for the run.
struct Session {
  distribute::PeerId number = 0;  // Of the host in the run.
  Host host;
  std::unique_ptr<RemoteHost> remote;
  std::unique_ptr<AgentLink> agent;  // Null: the host has no agent (of this version) yet.
  bool settled = true;               // The agent lies in the store, not in a folder of its own.
  AgentStart start;
  protocol::Facts facts;
  std::optional<protocol::PythonFacts> python;   // Of a run about a package, once it was asked.
  NodeFacts node;                                // Unknown unless the run asks for it.
  std::optional<protocol::Listening> listening;  // Once it has been asked.
  Deadline::Clock::time_point next_ping{};       // When it must hear of us again.
  distribute::Swarm* swarm = nullptr;            // In which it takes part, or serves.
  std::uint64_t bytes_before = 0;                // Sent on channels that are closed.
  // The host may be changed by now; if it exchanges a package it goes on with that whoever leaves.
  bool exchanging = false;
  std::vector<std::string> transcript;

  // Ends the agent (it leaves at the end of its input) and the connection.
  void hang_up();
  std::uint64_t bytes_sent() const { return bytes_before + (agent ? agent->bytes_sent() : 0); }
};

// Why a host cannot be worked on, in the report's words.
struct HostFailure {
  HostStatus status = HostStatus::kFailed;
  Error error;
};

// For so many hosts that are worked on at once, with a key of its own; `local`: this machine only.
Peering peering_for(const RunContext& run, std::size_t hosts, bool local);

// Connects and looks what the host is. Changes nothing there. A host whose agent was brought to
// look may pass it on to others from then on.
tl::expected<Session, HostFailure> look_at(const Host& host, distribute::PeerId number,
                                           const RunContext& run);

// Asks what the Python is that a package goes into. Brings the agent into the store if there is
// none to ask; changes nothing else. That the host has no such Python is an answer, and in the
// facts.
Result<void> ask_python(Session& session, const RunContext& run);

// A running agent in the host's store, brought now if there is none. From here on the host is
// changed.
Result<void> ensure_agent(Session& session, const RunContext& run);

// Where the libtorch of a host's ops may lie there.
std::vector<std::string> torch_folders_for(const Session& session, const RunContext& run);

// Null: no host passes the agent on.
distribute::AgentSources* agent_sources_of(const RunContext& run);

}  // namespace dsi

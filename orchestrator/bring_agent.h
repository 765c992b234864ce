#pragma once

// Puts the agent on a host that has none: the loader goes over SSH, and the agent comes from
// another host where there is one, and else from here.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "orchestrator/agent_link.h"
#include "orchestrator/distribute/agent_sources.h"
#include "orchestrator/distribute/rate_limit.h"
#include "orchestrator/ports/remote_host.h"

namespace dsi {

struct Bringing {
  RemoteHost& remote;
  const AgentStart& start;
  const AgentBinary& agent;
  distribute::AgentSources* sources = nullptr;  // Null: every host gets it from here.
  std::string run_key;                          // What sources know this run by.
  std::chrono::milliseconds stall_timeout{};
  std::stop_token stop;
  std::atomic<std::uint64_t>& bytes_sent;  // Of the whole run.
  std::vector<std::string>& transcript;
  distribute::RateLimit* limit = nullptr;  // Of what leaves this machine; null: none.
  AgentPlace place = AgentPlace::kStore;
};

struct Brought {
  std::unique_ptr<AgentLink> agent;  // It has greeted.
  AgentLink::Greeting greeting;
  // Others may hope for this host until it goes; lease->becomes() once the host listens. Empty
  // where nobody passes the agent on, or the agent was there after all.
  std::optional<distribute::AgentSources::Lease> lease;
};

// `sent_in_vain` grows by what was sent to a host that has no agent afterwards.
Result<Brought> bring_agent(const Bringing& bringing, std::uint64_t& sent_in_vain);

}  // namespace dsi

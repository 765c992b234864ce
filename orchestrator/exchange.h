#pragma once

// One host's part in a swarm, told from the head: between the agent's "need" and its "complete".

#include <optional>

#include "orchestrator/agent/protocol.h"
#include "orchestrator/base/result.h"
#include "orchestrator/deploy.h"

namespace dsi {

// Offers the host as a source for others, once in a session. A node that cannot listen is none;
// that is no failure.
Result<void> listen(Session& session, const RunContext& run);

// Brings the host what it needs, from the head or from other hosts. Returns nothing when all of it
// is whole there (the conversation goes on, and the node serves others for as long as its session
// stands), or the result with which the agent ended early.
Result<std::optional<protocol::HostResult>> exchange(Session& session, const protocol::Need& need,
                                                     const RunContext& run);

}  // namespace dsi

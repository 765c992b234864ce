#pragma once

// One host's part in a swarm, told from the head: between the agent's "need" and its "complete".

#include <optional>
#include <stop_token>

#include "orchestrator/agent/protocol.h"
#include "orchestrator/base/result.h"
#include "orchestrator/session.h"

namespace dsi {

// Offers the host as a source for others, once in a session. A node that cannot listen is none;
// that is no failure.
Result<void> listen(Session& session, const RunContext& run);

// Brings the host what it needs, from the head or from other hosts. Returns nothing when all of it
// is whole there (the conversation goes on, and the node serves others for as long as its session
// stands), or the result with which the agent ended early.
Result<std::optional<protocol::HostResult>> exchange(Session& session, const protocol::Need& need,
                                                     const RunContext& run);

// Says "ping" when it is time to. Only a host that listens needs to hear it.
Result<void> ping_if_due(Session& session, Deadline deadline);

// The agent's next message; tells it meanwhile that we are still there.
Result<protocol::Message> hear(Session& session, Deadline deadline, const RunContext& run);

// Holds the line to a host that is done, for as long as others may take chunks from it.
void attend(Session& session, const RunContext& run, std::stop_token drain);

}  // namespace dsi

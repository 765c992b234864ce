#pragma once

// The files that the store lacks come out of a swarm's stream while it arrives.

#include <map>
#include <string>
#include <vector>

#include "orchestrator/agent/prefix.h"
#include "orchestrator/agent/receive.h"
#include "orchestrator/agent/wire.h"
#include "orchestrator/manifest.h"

namespace dsi::agent {

// From the head's "swarm" to "complete". The store gets the files when all of them are whole, and
// not before: a run that is interrupted leaves the same need, so that the next one is served by the
// same stream.
Result<void> receive_from_swarm(const Prefix& prefix, const std::vector<ManifestFile>& files,
                                const std::map<std::string, std::uint64_t>& missing,
                                const protocol::SwarmRequest& request, Wire& wire,
                                Verified& verified);

}  // namespace dsi::agent

#pragma once

// A hold: this node keeps the release that it has until somebody ends the hold. It lies beside the
// release (hold.json), not at a head, so that every head respects it.

#include <string>

#include "orchestrator/agent/prefix.h"
#include "orchestrator/agent/protocol.h"
#include "orchestrator/agent/wire.h"

namespace dsi::agent {

inline constexpr char kHoldName[] = "hold.json";

// What protocol::to_text says of the hold of a prefix; empty if there is none. Reads only.
std::string find_hold(const std::string& prefix);

// An error, and "held" as the result, if the prefix is held and that is to be respected.
Result<void> respect_hold(const std::string& prefix, const protocol::Care& care,
                          protocol::HostResult& result);

// Sets the hold, or ends it. Setting it again changes who, when and why.
Result<void> change_hold(const std::string& prefix, const protocol::HoldRequest& request,
                         Wire& wire, protocol::HostResult& result);

}  // namespace dsi::agent

#pragma once

#include <string>

#include "orchestrator/agent/protocol.h"

namespace dsi::agent {

// What ds-facts would say here (orchestrator/facts), by a process of its own. Changes nothing.
protocol::Looked look(const protocol::LookRequest& request, const std::string& prefix);

}  // namespace dsi::agent

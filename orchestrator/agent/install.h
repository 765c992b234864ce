#pragma once

// The five things that a head can ask of a node. Each returns what the report shall say; none
// throws, and a failure leaves the node with what it had.

#include <string>

#include "orchestrator/agent/wire.h"

namespace dsi::agent {

// Drives the conversation in protocol.h from "need" to before "result".
protocol::HostResult install(const std::string& prefix, const protocol::InstallRequest& request,
                             Wire& wire);
protocol::HostResult rollback(const std::string& prefix, const protocol::RollbackRequest& request,
                              Wire& wire);
protocol::HostResult uninstall(const std::string& prefix, const protocol::UninstallRequest& request,
                               Wire& wire);
protocol::HostResult hold(const std::string& prefix, const protocol::HoldRequest& request,
                          Wire& wire);
protocol::HostResult report(const std::string& prefix, const protocol::ReportRequest& request,
                            Wire& wire);

// Verifies and probes one release of the prefix. Changes nothing, needs no lock.
protocol::HostResult report_release(const std::string& prefix, const std::string& id,
                                    const protocol::ReportRequest& request);

}  // namespace dsi::agent

#pragma once

// A release with packages. Everything up to a whole release in the prefix is as for ops; then
// bin/ds-package of the release, run by the environment's own Python, does what is done inside the
// environment, in one transaction. The truth about what is installed lies there too, so each
// environment of a node has a prefix of its own below the one that the head names, whose `current`
// follows it.

#include <string>

#include "orchestrator/agent/protocol.h"
#include "orchestrator/agent/wire.h"
#include "orchestrator/manifest.h"

namespace dsi::agent {

inline constexpr char kPackageProgram[] = "bin/ds-package";

// The prefix of an environment's own, below the one that the head names.
std::string environment_prefix(const std::string& base, const protocol::PythonFacts& facts);

// Each fills the result as far as it gets; an error makes it a failed one.
Result<void> install_package(const std::string& prefix, const protocol::InstallRequest& request,
                             const Manifest& manifest, Wire& wire, protocol::HostResult& result);
Result<void> rollback_package(const std::string& prefix, const protocol::RollbackRequest& request,
                              Wire& wire, protocol::HostResult& result);
Result<void> uninstall_package(const std::string& prefix, const protocol::UninstallRequest& request,
                               Wire& wire, protocol::HostResult& result);
Result<void> hold_package(const std::string& prefix, const protocol::HoldRequest& request,
                          Wire& wire, protocol::HostResult& result);
Result<void> report_package(const protocol::ReportRequest& request, Wire& wire,
                            protocol::HostResult& result);

}  // namespace dsi::agent

#pragma once

// Which hosts a run is for: the first arrow of the flow.

#include <string>
#include <vector>

#include "hostfile/host.h"
#include "orchestrator/base/result.h"
#include "orchestrator/options.h"
#include "orchestrator/ports/process.h"
#include "orchestrator/progress.h"

namespace dsi {

struct HostList {
  std::vector<Host> hosts;  // At least one.
  bool local = false;       // This machine only, without SSH.
  std::string source;       // "hostfile /job/hostfile", "--hosts", "this machine".
};

// --local_only, --hosts, -H, or the default hostfile; without the latter a local install, which is
// said. All errors of a hostfile at once, in the Error's text. Warnings go to `progress`.
Result<HostList> resolve_hosts(const Options& options, ProcessRunner& processes,
                               Progress& progress);

}  // namespace dsi

#pragma once

#include <optional>
#include <vector>

#include "hostfile/host.h"
#include "orchestrator/plan.h"
#include "orchestrator/progress.h"
#include "orchestrator/session.h"

namespace dsi {

// All hosts looked at, side by side; the sessions stay open for what comes next.
struct Survey {
  std::vector<SurveyRow> rows;                   // In the order of the hosts.
  std::vector<std::optional<Session>> sessions;  // The same; none where the host did not answer.
};

// Changes nothing on any host, but that one which is to get a package and on which an agent runs
// nowhere but in the store gets it there. A stop ends it early: hosts that were not asked are
// kNotTried with an error that says so.
Survey survey_hosts(const std::vector<Host>& hosts, const RunContext& run, Progress& progress,
                    std::stop_token drain);

}  // namespace dsi

#pragma once

// The command env.

#include <ostream>
#include <stop_token>
#include <vector>

#include "orchestrator/base/result.h"
#include "orchestrator/folders.h"
#include "orchestrator/options.h"
#include "orchestrator/plan.h"
#include "orchestrator/ports/process.h"
#include "orchestrator/progress.h"

namespace dsi {

// Derives the environment from the hosts, or reads its lock if the options name one (then no rows
// are needed), and writes what the options ask for: the lock, environment.yml, the root.
Result<void> run_environment(const Options& options, const std::vector<SurveyRow>& rows,
                             const Folders& folders, ProcessRunner& processes, Progress& progress,
                             std::ostream& out, std::stop_token stop);

}  // namespace dsi

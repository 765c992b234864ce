#pragma once

// What the commands build, hosts and env do; what env asks of hosts it is given.

#include "orchestrator/install.h"

namespace dsi {

// Writes the bundle and says what it is.
tl::expected<int, RunError> run_build(const Options& options, World& world);

// Derives an environment from the hosts of those rows, or, with --lock, from none.
tl::expected<int, RunError> run_env(const Options& options, const std::vector<SurveyRow>& rows,
                                    World& world);

// Prints which hosts are meant.
tl::expected<int, RunError> run_hosts(const Options& options, World& world);

}  // namespace dsi

#pragma once

// The commands that reach no host: build and hosts.

#include "orchestrator/install.h"

namespace dsi {

// Writes the bundle and says what it is.
tl::expected<int, RunError> run_build(const Options& options, World& world);

// Prints which hosts are meant.
tl::expected<int, RunError> run_hosts(const Options& options, World& world);

}  // namespace dsi

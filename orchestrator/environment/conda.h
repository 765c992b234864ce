#pragma once

// The same environment for conda: an environment.yml. Pure.

#include <string>

#include "orchestrator/environment/derive.h"

namespace dsi {

// The newest system library of conda-forge (sysroot_linux-*) that is not newer than `glibc`; empty:
// there is none. "2.31" → "2.28".
std::string conda_sysroot(const std::string& glibc);

// `name` is the environment's. An error: no system library is old enough. Versions are pinned as
// far as the hosts determine them; conda-lock makes the rest exact.
Result<std::string> conda_text(const Environment& environment, const std::string& name);

}  // namespace dsi

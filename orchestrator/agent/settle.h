#pragma once

#include <string>

#include "orchestrator/base/result.h"

namespace dsi::agent {

// Puts this program into the store of `prefix`, as <digest>.x and as it travels, where the next run
// finds it. Nothing is done if it runs from there. Whole or not at all, also if the power fails,
// and without the lock, as the loader does it; `nonce` makes the names of unfinished files its own.
Result<void> settle(const std::string& prefix, const std::string& nonce);

}  // namespace dsi::agent

#pragma once

#include <filesystem>
#include <ostream>

#include "orchestrator/base/result.h"
#include "orchestrator/options.h"
#include "orchestrator/terminal.h"

namespace dsi {

// `history` and `history show ID`: what earlier runs came to, from their records in `state`. An id
// may be shortened to what only one run begins with, and "last" is the newest. Errors are of usage.
Result<void> show_history(const Options& options, const std::filesystem::path& state,
                          std::ostream& out, const Style& style);

}  // namespace dsi

#pragma once

#include <filesystem>
#include <stop_token>

#include "orchestrator/base/result.h"
#include "orchestrator/base/unique_fd.h"
#include "orchestrator/progress.h"

namespace dsi {

// Holds the lock file `path`, made if needed, until the descriptor is closed; waits for another run
// that has it, and says so once.
Result<UniqueFd> lock_folder(const std::filesystem::path& path, Progress& progress,
                             std::stop_token stop);

}  // namespace dsi

#pragma once

#include <filesystem>

#include "orchestrator/base/result.h"

namespace dsi {

// One zstd stream that gives `target` to who has `base`: zstd's --patch-from. Written to `patch` as
// a whole or not at all.
Result<void> make_patch(const std::filesystem::path& base, const std::filesystem::path& target,
                        const std::filesystem::path& patch);

}  // namespace dsi

#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "orchestrator/base/result.h"

namespace dsi {

struct WrittenExamples {
  std::vector<std::filesystem::path> files;  // Sorted.
  std::string text;                          // For the user: what there is now and what to do next.
};

// Copies every file of `source`, the installed examples, into `target`, which is made if need be.
// If one of them is there already nothing is written and the error names it; if writing fails
// half-way what was written is taken away again.
Result<WrittenExamples> write_examples(const std::filesystem::path& source,
                                       const std::filesystem::path& target);

}  // namespace dsi

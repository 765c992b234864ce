#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "orchestrator/base/result.h"

namespace dsi {

Result<std::string> read_file(const std::filesystem::path& path);

// Writes a temporary neighbour, fsyncs it and renames it over `path`: a reader sees the old text or
// the new, also after a power cut. The folder must exist.
Result<void> write_file_atomically(const std::filesystem::path& path, std::string_view data,
                                   mode_t mode = 0644);

// All bytes, or an error. Retries short writes and EINTR; for blocking descriptors.
Result<void> write_all(int fd, std::string_view data);

}  // namespace dsi

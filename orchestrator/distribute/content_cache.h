#pragma once

// What the head remembers of earlier releases, to make patches from.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "orchestrator/base/result.h"
#include "orchestrator/bundle.h"

namespace dsi::distribute {

// Files of the releases that this machine has sent, by digest: <folder>/<sha256>. Bounded in size;
// what was used last stays longest. Losing it costs bytes on the wire and nothing else.
class ContentCache {
 public:
  explicit ContentCache(std::filesystem::path folder,
                        std::uint64_t most_bytes = std::uint64_t{4} << 30)
      : folder_(std::move(folder)), most_bytes_(most_bytes) {}

  // Keeps every file of the release (a hard link where that is possible) and drops the oldest ones
  // beyond the bound.
  Result<void> keep(const Payload& payload);
  // The file, if it is there and still what its name says.
  std::optional<std::filesystem::path> find(const std::string& digest) const;

 private:
  std::filesystem::path folder_;
  std::uint64_t most_bytes_;
};

}  // namespace dsi::distribute

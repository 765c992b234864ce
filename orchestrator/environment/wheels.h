#pragma once

// What Debian does not have, from the Python index: a newer CMake, a torch.

#include <filesystem>
#include <stop_token>
#include <string>
#include <vector>

#include "orchestrator/base/result.h"
#include "orchestrator/environment/lock.h"
#include "orchestrator/ports/process.h"

namespace dsi {

// For whom a wheel is: it must run in the base, whatever runs here.
struct WheelTarget {
  std::string machine;  // uname -m
  std::string glibc;    // "2.31"
  std::string python;   // "3.9"
  std::string index;    // -m; empty: pip's own.
};

// pip's --platform values, newest first: manylinux_2_31_x86_64 … manylinux2014_x86_64. Pure.
std::vector<std::string> wheel_platforms(const std::string& machine, const std::string& glibc);

// The wheel that the index has for the requirement ("cmake>=3.23,<4"), without what it depends on.
Result<LockedPackage> resolve_wheel(const std::string& requirement, const WheelTarget& target,
                                    ProcessRunner& processes, std::stop_token stop);

// Where fetch_wheel has put it below `folder`; empty: nowhere yet.
std::filesystem::path kept_wheel(const LockedPackage& wheel, const std::filesystem::path& folder);

// Fetches exactly that one. It keeps its name, which is part of what a wheel says of itself.
Result<void> fetch_wheel(const LockedPackage& wheel, const WheelTarget& target,
                         const std::filesystem::path& folder, ProcessRunner& processes,
                         std::stop_token stop);

}  // namespace dsi

#pragma once

// The lock of an environment: exact versions and digests of all that a build uses. Two machines
// with the same lock build the same bytes; its fingerprint stands in the manifest of what was
// built.

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/base/result.h"
#include "orchestrator/environment/derive.h"

namespace dsi {

struct LockedPackage {
  std::string name;
  std::string version;
  std::string sha256;  // Of the .deb or the .whl.
  friend bool operator==(const LockedPackage&, const LockedPackage&) = default;
};

struct EnvironmentLock {
  std::string suite;
  std::string architecture;  // Debian's.
  int compiler = 0;
  std::string python;  // "3.11"; empty: no host says.
  std::string torch;   // Version.
  TorchSource torch_source = TorchSource::kFolder;
  std::string torch_sha256;  // Of a folder: of what is compiled and linked against.
  std::string cuda;          // Version of the toolkit; empty: no device code.
  std::string cuda_sha256;   // Of its compilers.
  std::vector<std::string> compute_capabilities;
  std::vector<LockedPackage> packages;  // Of Debian, sorted by name.
  std::vector<LockedPackage> wheels;    // Of the Python index, sorted by name.
};

// YAML, the same bytes for the same lock.
std::string lock_text(const EnvironmentLock& lock);

// SHA-256 over that text: comments and layout of a file do not count.
std::string fingerprint(const EnvironmentLock& lock);

// `file` is for messages. A lock names what is run as part of a build, so nothing in it is taken
// that could be anything but a name, a version or a digest.
Result<EnvironmentLock> parse_lock(std::string_view text, const std::filesystem::path& file);
Result<EnvironmentLock> read_lock(const std::filesystem::path& file);

}  // namespace dsi

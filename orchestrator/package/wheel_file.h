#pragma once

// A wheel, read and written anew.
//
// It is repacked before it is distributed: nothing compressed, entries in a fixed order with a
// fixed time. Then two wheels that differ in one file differ in those bytes only, so that a patch
// is small, and the same content gives the same bytes, and with that the same release.

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/base/result.h"
#include "orchestrator/manifest.h"

namespace dsi {

struct WheelContent {
  std::string name;     // Normalised.
  std::string version;  // As METADATA has it.
  std::vector<std::string> tags;
  std::vector<std::string> requires_dist;
  std::vector<ManifestModule> modules;               // Sorted by name; `op` is the name.
  std::map<std::string, std::string> needs_symbols;  // Of every shared object.
  bool uses_torch = false;                           // Some shared object needs a library of torch.
  bool uses_cuda = false;                            // Of CUDA, or has device code.
  std::uint64_t bytes = 0;                           // Of its files, unpacked.
};

// Unpacks into `folder`, which must be empty, and checks every file against RECORD. The wheel may
// come from anywhere: nothing is written outside the folder.
Result<WheelContent> open_wheel(const std::filesystem::path& wheel,
                                const std::filesystem::path& folder);

// Makes the wheel of an unpacked one. The file appears whole or not at all.
Result<void> pack_wheel(const std::filesystem::path& folder, const std::filesystem::path& wheel);

// "py2.py3-none-any" → py2-none-any, py3-none-any.
std::vector<std::string> expand_tag(std::string_view tag);

// The distribution that a wheel's file name says, normalised.
std::string wheel_name(std::string_view file_name);

}  // namespace dsi

#pragma once

#include <filesystem>
#include <string>

#include "orchestrator/base/result.h"

namespace dsi {

// Where the program finds its own parts and keeps its own files.
struct Folders {
  std::filesystem::path kernels;           // The ops' sources.
  std::filesystem::path examples;          // What -e copies.
  std::filesystem::path agent;             // ds-agent, for the nodes.
  std::filesystem::path agent_compressed;  // The same as .lzma.
  std::filesystem::path loader;            // ds-loader, which brings it there.
  std::filesystem::path probe;             // ds-probe, for the nodes.
  std::filesystem::path probe_source;      // The same, to be compiled in an environment.
  std::filesystem::path package_program;   // ds-package, for the nodes' Pythons.
  std::filesystem::path facts;             // ds-facts, for the nodes.
  std::filesystem::path cache;             // $XDG_CACHE_HOME/ds-install
  std::filesystem::path state;             // $XDG_STATE_HOME/ds-install
};

// Looks beside the running program: an installed tree (bin/, libexec/ds-install/,
// share/ds-install/) or a build folder of the source tree.
Result<Folders> find_folders();

}  // namespace dsi

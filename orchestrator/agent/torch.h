#pragma once

// Which libtorch the ops of this node meet.

#include <string>
#include <vector>

namespace dsi::agent {

struct Torch {
  std::string folder;   // With libtorch_cpu.so; empty: none found.
  std::string version;  // Empty: not to be found out without loading it.
  // True if the loader does not find the folder by itself.
  bool needs_path = false;
  // The folder of the environment that it belongs to, where that brings a C++ library of its own,
  // as conda's do: what runs in it loads that one. Empty: it brings none.
  std::string environment;
};

// The first of: `candidates` (a folder of libraries or a torch package), the torch of the python3
// in PATH, found without importing it, the system's own. Takes 0.1 s where it has to ask Python.
Torch find_torch(const std::vector<std::string>& candidates);

// Standard output of a program, stopped after five seconds; empty if it failed.
std::string output_of(const std::vector<std::string>& argv);

}  // namespace dsi::agent

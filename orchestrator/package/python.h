#pragma once

// The Python of this machine that a package is built with.

#include <filesystem>
#include <map>
#include <stop_token>
#include <string>
#include <vector>

#include "orchestrator/base/result.h"
#include "orchestrator/ports/process.h"

namespace dsi {

struct BuildPython {
  std::string executable;  // Absolute.
  std::string version;     // "3.11.2"
  std::string tag;         // Of a wheel with compiled parts: "cp311-cp311-linux_x86_64".
  std::string pip;         // Version; empty: it has none.
  std::string headers;     // The folder with Python.h, or empty if it is not there.
  std::string torch;       // "2.11.0+cu130"; empty: none.
  std::string torch_path;  // Its folder.
  std::string torch_cuda;  // "13.0"; empty: compiled without.
  bool torch_cxx11_abi = true;
  std::map<std::string, std::string> installed;  // Normalised name, version.
};

// `option` (--python), else the python3 that PATH has, which an activated environment puts there.
Result<BuildPython> find_build_python(ProcessRunner& processes, const std::string& option,
                                      std::stop_token stop);

// An error that names what is missing of `distributions` (names as in an index) and how to get it.
Result<void> check_build_needs(const BuildPython& python,
                               const std::vector<std::string>& distributions);

}  // namespace dsi

#pragma once

// From what the hosts are to what their ops are built with. Pure.

#include <optional>
#include <string>
#include <vector>

#include "orchestrator/base/result.h"
#include "orchestrator/plan.h"

namespace dsi {

// What all hosts together ask of a build. Empty texts: no host says.
struct EnvironmentNeeds {
  std::string arch;        // uname -m
  std::string glibc;       // The lowest.
  std::string glibc_host;  // A host that has it.
  std::string glibcxx;     // The same of libstdc++.
  std::string glibcxx_host;
  std::string torch;                              // "2.11.0+cu130"
  std::string torch_cuda;                         // "13.0"
  std::string python;                             // "3.11", of the Python that the torch is in.
  std::vector<std::string> compute_capabilities;  // Of all devices, ascending, each once.
  std::vector<std::string> unknown;               // Hosts that nobody could look at.
};

// An error: hosts that no one build can serve (architectures, C libraries, torches), or none that
// answered. `torch_given`: the user names the torch, so that those of the hosts do not count.
Result<EnvironmentNeeds> needs_of(const std::vector<SurveyRow>& rows, bool torch_given);

// Where the torch that is compiled against comes from.
enum class TorchSource {
  kFolder,  // A folder of the building machine; it is shown to the environment.
  kDebian,  // libtorch-dev of the base.
  kWheel,   // The Python index.
};

// What to build with.
struct Environment {
  std::string suite;  // Of the Debian base; empty: none is old enough, and `no_base` says so.
  Error no_base;
  std::string architecture;  // Debian's: "amd64".
  std::string machine;       // uname -m
  std::string glibc;         // What the result needs at most.
  int compiler = 0;          // Of g++-N; 0: without a base.
  std::string python;
  std::string torch;
  TorchSource torch_source = TorchSource::kFolder;
  std::string cuda;  // Version of the toolkit; empty: no device code.
  std::vector<std::string> compute_capabilities;
  // Why it is so, a subject and a sentence each, for people.
  std::vector<std::pair<std::string, std::string>> reasons;
};

struct EnvironmentWishes {
  std::string torch;              // The version of the one that the user or this machine names.
  std::string torch_cuda;         // Its CUDA.
  bool torch_asked = false;       // --torch names it.
  bool torch_is_debians = false;  // It is the system's.
  std::string toolkit;            // The CUDA toolkit of this machine for it; empty: none.
};

// An error: no compiler of the base is old enough for the toolkit, devices without a toolkit.
Result<Environment> derive(const EnvironmentNeeds& needs, const EnvironmentWishes& wishes);

}  // namespace dsi

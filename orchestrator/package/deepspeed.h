#pragma once

// All that is special to DeepSpeed among Python packages.

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/base/result.h"

namespace dsi::deepspeed {

inline constexpr std::string_view kName = "deepspeed";

// An op of DeepSpeed and where its compiled module lies in the package.
struct Op {
  std::string_view name;      // "cpu_adam"
  std::string_view variable;  // "DS_BUILD_CPU_ADAM"
  std::string_view module;    // "deepspeed.ops.adam.cpu_adam_op"
};

// The op of a module, or the module's own name where none is known.
std::string op_of_module(std::string_view module);

// The op whose build variable this is; nullptr if there is none. DeepSpeed's own is AIO for
// async_io.
const Op* op_of_variable(std::string_view variable);

// A file of the source tree that only a build writes; `path` is relative to the tree.
bool is_build_state(std::string_view path);

// What its setup.py imports before it can say anything, as an index names it.
std::vector<std::string> build_needs();

// Variables for the build that the user's environment (`set`) leaves open.
struct BuildTarget {
  std::vector<std::string> compute_capabilities;  // Of the hosts: "8.0"; empty: no GPU, or unknown.
  bool hosts_known = false;                       // Hosts were asked.
  bool torch_has_cuda = false;
  bool ninja = false;  // A ninja was found.
  bool old = false;    // Before 0.14, whose CPU accelerator needs an extension by Intel.
};
std::map<std::string, std::string> build_environment(const std::map<std::string, std::string>& set,
                                                     const BuildTarget& target);

// For GCC's -specs: libraries that DeepSpeed forgets to link a module with when it is built ahead
// of time for the accelerator "cpu". Its async_io then lacks io_submit wherever it is loaded.
// Libraries must come after the objects, which LDFLAGS cannot do; a module that uses nothing of
// them does not get to need them.
constexpr std::string_view kCpuLinkSpecs =
    "*lib:\n+ %{shared:--push-state --as-needed -laio --pop-state}\n\n";

// What the wheel says of itself in deepspeed/git_version_info_installed.py.
struct VersionInfo {
  std::map<std::string, bool> installed_ops;
  std::string accelerator;  // "cuda", "cpu"
  std::string torch;        // "2.11"
  std::string torch_cuda;   // "13.0"; empty: none.
};
VersionInfo read_version_info(std::string_view python);

// An op that the user asked for by its variable and that is not among `modules`: DeepSpeed leaves
// it out without a word.
Result<void> check_asked_ops(const std::map<std::string, std::string>& set,
                             const std::vector<std::string>& modules);

}  // namespace dsi::deepspeed

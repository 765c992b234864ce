#pragma once

// Whether the build makes device code, with which toolkit and for which devices. Looking for
// toolkits runs nvcc; the decision is pure.

#include <filesystem>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "orchestrator/base/result.h"
#include "orchestrator/cuda_archs.h"
#include "orchestrator/manifest.h"
#include "orchestrator/ports/process.h"
#include "orchestrator/toolchain.h"

namespace dsi {

// A CUDA toolkit of this machine, which needs neither a device nor a driver.
struct CudaToolkit {
  std::filesystem::path nvcc;
  std::string version;             // "13.0"
  std::vector<std::string> codes;  // "sm_75": what it compiles for; empty: it does not say.
};

// Where toolkits are looked for, as the environment has it: CUDACXX, CUDA_HOME and CUDA_PATH as
// people write them, PATH, then the folders cuda* in /usr/local. Each nvcc once, in this order.
std::vector<std::filesystem::path> nvcc_places();

// Those of the places that answer. Side effects: runs each nvcc twice.
std::vector<CudaToolkit> find_toolkits(const std::vector<std::filesystem::path>& places,
                                       ProcessRunner& processes, std::stop_token stop);

// What the hosts and the user want.
struct CudaWish {
  bool hosts_known = false;                       // False: `build` for hosts that nobody looks at.
  std::vector<std::string> compute_capabilities;  // Of the hosts' devices: "9.0".
  std::string arch_list;                          // TORCH_CUDA_ARCH_LIST
  std::string accelerator;  // DS_ACCELERATOR: "cuda" and "cpu" decide; else the hosts do.
  bool skip_check = false;  // DS_SKIP_CUDA_CHECK
};
// With the three variables of the environment.
CudaWish cuda_wish(bool hosts_known, std::vector<std::string> compute_capabilities);

// What a build with device code is told.
struct CudaBuild {
  CudaToolkit toolkit;
  std::vector<CudaArch> archs;  // Sorted, not empty.
  friend bool operator==(const CudaBuild& a, const CudaBuild& b) {
    return a.toolkit.nvcc == b.toolkit.nvcc && a.toolkit.version == b.toolkit.version &&
           a.archs == b.archs;
  }
};

struct CudaDecision {
  std::optional<CudaBuild> build;     // Nothing: code for the processor only.
  std::vector<std::string> warnings;  // What the user should know, one thing each.
};

// An error: device code is wanted, and what is there cannot make any that would run: the toolkits
// are of another major version than torch's CUDA, the architectures are none, or DS_ACCELERATOR
// demands it of a machine without a toolkit.
Result<CudaDecision> decide_cuda(const CudaWish& wish, const Torch& torch,
                                 const std::vector<CudaToolkit>& toolkits);

// What was asked of the compiler and is not in the files, one line for each op that has device
// code and not all of it. Empty: it is there as it was asked for.
std::vector<std::string> codes_not_in(const Manifest& manifest,
                                      const std::optional<CudaBuild>& build);

// "80-real;90a-real;120": the same for CMake.
std::string cmake_architectures(const std::vector<CudaArch>& archs);

}  // namespace dsi

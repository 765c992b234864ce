#pragma once

// What ops are built with on this machine.

#include <filesystem>
#include <map>
#include <stop_token>
#include <string>

#include "orchestrator/base/result.h"
#include "orchestrator/ports/process.h"

namespace dsi {

struct Torch {
  std::filesystem::path prefix;   // pip's torch folder, an unpacked libtorch, or /usr.
  std::filesystem::path library;  // The folder with libtorch_cpu.so.
  std::string version;            // "2.11.0+cu130"
  bool cxx11_abi = true;          // _GLIBCXX_USE_CXX11_ABI it was built with.
  bool has_cuda = false;          // It was built with CUDA.
  std::string cuda;               // With which: "13.0"; empty: without, or it does not say.
  std::string found_by;           // "--torch", "python3", "the system".
  std::string stamp;  // Size and time of libtorch_cpu.so: another one under the same version.
};

struct Toolchain {
  std::string arch;      // uname -m
  std::string compiler;  // First line of `c++ --version`.
  std::string cmake;     // Version.
  std::string ninja;     // Version.
  // Fingerprint of the environment that they are in (environment/lock.h); empty: this machine.
  std::string environment;
  Torch torch;

  // What the bytes of a library depend on besides the sources, for the manifest.
  std::map<std::string, std::string> as_map() const;
};

// The torch in `prefix`.
Result<Torch> inspect_torch(const std::filesystem::path& prefix);

// The headers of this torch are those of the system's libtorch-dev: Debian's python3-torch, for
// one, has links to them, which lead nowhere in another root.
bool is_systems(const std::filesystem::path& torch_prefix);

// Compiler, CMake and Ninja, where `processes` runs programs; without a torch.
Result<Toolchain> find_tools(ProcessRunner& processes, const std::string& compiler,
                             std::stop_token stop);

// `torch_option` (--torch) first, then the torch of the active python3 (looked up without importing
// it: that alone takes seconds), then the system's.
Result<Torch> find_torch(ProcessRunner& processes, const std::filesystem::path& torch_option,
                         std::stop_token stop);

// Both, of this machine. CXX names another compiler.
Result<Toolchain> find_toolchain(ProcessRunner& processes,
                                 const std::filesystem::path& torch_option, std::stop_token stop);

}  // namespace dsi

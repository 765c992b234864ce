#pragma once

// An environment as a folder: a Debian root with everything that its lock names, and the lock.

#include <filesystem>
#include <optional>
#include <stop_token>
#include <string>

#include "orchestrator/base/result.h"
#include "orchestrator/cuda_build.h"
#include "orchestrator/environment/lock.h"
#include "orchestrator/environment/sandbox.h"
#include "orchestrator/folders.h"
#include "orchestrator/options.h"
#include "orchestrator/progress.h"
#include "orchestrator/toolchain.h"

namespace dsi {

// Where packages come from.
struct PackageSources {
  std::string mirror;  // Empty: the one of this machine's apt.
  std::string index;   // Empty: pip's own.
};

// Makes the root, whole or not at all, in a folder that is not there or is that same environment;
// false: it is. Needs no rights: packages are unpacked, not configured, and a build needs no more.
// What was fetched once, for any root, is kept below `cache`.
Result<bool> make_root(const EnvironmentLock& lock, const std::filesystem::path& folder,
                       const PackageSources& sources, const std::filesystem::path& cache,
                       ProcessRunner& processes, Progress& progress, std::stop_token stop);

// SHA-256 over what is compiled and linked against: the headers and the libraries.
Result<std::string> torch_digest(const Torch& torch);
// Over the compilers of a CUDA toolkit.
Result<std::string> toolkit_digest(const CudaToolkit& toolkit);

// A root to build ops in. Immutable once opened; thread-safe.
class BuildRoot {
 public:
  // An error: the folder is no environment, this machine runs nothing in it, or has not the torch
  // or the CUDA toolkit of its lock.
  static Result<BuildRoot> open(const Options& options, const Folders& folders,
                                ProcessRunner& processes, std::stop_token stop);

  // Runs inside; sees kernels, ops, torch and toolkit, and writes to the cache alone.
  ProcessRunner& runner() const { return *sandbox_; }
  const Toolchain& toolchain() const { return toolchain_; }

  // Device code as the lock has it: for its devices, unless TORCH_CUDA_ARCH_LIST names others.
  CudaWish wish(CudaWish wish) const;
  const std::vector<CudaToolkit>& toolkits() const { return toolkits_; }

  // ds-probe, made here too: it must run wherever the ops do.
  const std::filesystem::path& probe() const { return probe_; }

 private:
  EnvironmentLock lock_;
  std::shared_ptr<Sandbox> sandbox_;
  Toolchain toolchain_;
  std::vector<CudaToolkit> toolkits_;
  std::filesystem::path probe_;
};

}  // namespace dsi

#pragma once

// Compiles the ops, once, on this machine.

#include <filesystem>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "orchestrator/base/result.h"
#include "orchestrator/cuda_build.h"
#include "orchestrator/ports/process.h"
#include "orchestrator/progress.h"
#include "orchestrator/toolchain.h"

namespace dsi {

// What to build, and where from. A value: the same request with the same files gives the same key.
struct BuildRequest {
  std::filesystem::path kernels;                   // The folder with kernels/CMakeLists.txt.
  std::vector<std::filesystem::path> ops_folders;  // Further folders of op folders.
  std::vector<std::string> ops;                    // Asked for by name; empty: all.
  Toolchain toolchain;
  std::optional<CudaBuild> cuda;  // Nothing: code for the processor only.
  int jobs = 0;                   // 0: what cores and memory allow.
};

// An op as CMake found it, and what became of it.
struct BuiltOp {
  std::string name;
  std::string description;
  std::string capability;
  std::vector<std::string> devices;
  std::string library;  // In the release: "lib/libds_cpu_adam.so".
  bool built = false;
  Error error;         // If not built.
  Error without_cuda;  // Why code for devices is missing in what was built; else empty.
};

struct BuildResult {
  std::vector<BuiltOp> ops;  // Sorted by name.
  // Those that nobody asked for by name and that have code for devices only, where there can be
  // none; each with the reason.
  std::vector<BuiltOp> left_out;
  std::filesystem::path stage;  // lib/, include/, python/, ops/ of the ops that were built.
  std::string sources;          // Digest of the sources.
  std::filesystem::path log;
  bool fresh = false;  // Something was compiled.
};

// Digest of every file that can influence the ops: names and contents, sorted.
Result<std::string> hash_sources(const BuildRequest& request);

// The folder below `cache` in which exactly this request is built. Whatever influences the result
// is in its name, so what lies there can be used again without asking.
std::filesystem::path build_folder(const std::filesystem::path& cache, const BuildRequest& request,
                                   const std::string& sources);

// How many compilers at once: each may need 2 GiB with torch's headers.
int default_jobs();

// Builds. One op's failure is in its BuiltOp and does not stop the others; an Error means that no
// op could be built at all. Two runs with the same request wait for one another.
Result<BuildResult> build_ops(const BuildRequest& request, const std::filesystem::path& cache,
                              ProcessRunner& processes, Progress& progress, std::stop_token stop);

}  // namespace dsi

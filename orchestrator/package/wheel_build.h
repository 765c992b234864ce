#pragma once

// Builds one wheel from a source, once for the same source, Python with what is installed in it,
// tools and variables:
//
//   <cache>/wheels/<key>/lock        one run at a time
//                        tree/       the copy that is built; removed when it is done
//                        wheel/      the one wheel
//                        build.log

#include <filesystem>
#include <map>
#include <stop_token>
#include <string>
#include <vector>

#include "orchestrator/base/result.h"
#include "orchestrator/package/python.h"
#include "orchestrator/package/source.h"
#include "orchestrator/ports/process.h"
#include "orchestrator/progress.h"

namespace dsi {

struct WheelRequest {
  std::string name;      // Of the package, normalised.
  PackageSource source;  // No requirement any more.
  BuildPython python;
  bool keep_build = false;  // -n
  std::string compiler;     // First line of `c++ --version`.
  std::string nvcc;         // Its version line; empty: none.
  GitState git;
  std::map<std::string, std::string> environment;  // Added to the caller's.
  int jobs = 0;                                    // 0: what cores and memory allow.
};

struct WheelBuild {
  std::filesystem::path wheel;
  std::filesystem::path log;  // Of the build; empty if the source is a wheel itself.
  bool fresh = false;         // It was built now.
};

// The folder below `cache` in which exactly this is built.
Result<std::filesystem::path> wheel_folder(const WheelRequest& request,
                                           const std::filesystem::path& cache);

Result<WheelBuild> build_wheel(const WheelRequest& request, const std::filesystem::path& cache,
                               ProcessRunner& processes, Progress& progress, std::stop_token stop);

}  // namespace dsi

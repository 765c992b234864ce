#pragma once

// From what --deepspeed or --package names to a release:
//
//   source → wheel → repacked → manifest (→ further wheels, → our ops) → payload

#include <filesystem>
#include <stop_token>
#include <string>
#include <vector>

#include "orchestrator/agent/protocol.h"
#include "orchestrator/bundle.h"
#include "orchestrator/options.h"
#include "orchestrator/package/python.h"
#include "orchestrator/package/source.h"
#include "orchestrator/ports/process.h"
#include "orchestrator/progress.h"

namespace dsi {

// What is known before any host is asked.
struct PackageJob {
  PackageSource source;
  BuildPython python;
  std::string name;  // Normalised. Of a folder without a static name: the folder's.
  bool deepspeed = false;
};

// Reads the source, finds the Python and checks that it can build; fetches a requirement.
Result<PackageJob> prepare_package(const Options& options, const std::filesystem::path& cache,
                                   ProcessRunner& processes, Progress& progress,
                                   std::stop_token stop);

// What the package will ask of a host, as far as it is known before the build.
ManifestPackage expected_package(const PackageJob& job);

// The name of the package in question for report, rollback and uninstall.
Result<std::string> installed_package_name(const Options& options);

// What the hosts are, as far as the build asks.
struct PackageTargets {
  bool known = false;                             // Hosts were asked.
  std::vector<std::string> compute_capabilities;  // Of all of them, each once, sorted.
  std::vector<protocol::PythonFacts> pythons;     // Of those that can be installed on.
};

struct PackageFiles {
  std::filesystem::path program;       // Becomes bin/ds-package.
  std::vector<ReleaseFile> stand_ins;  // --drop-in: our ops, as in a release of them.
  std::filesystem::path cache;
};

struct BuiltPackage {
  Payload payload;
  bool fresh = false;         // Something was compiled.
  std::filesystem::path log;  // Of the build; empty if there was none.
};

Result<BuiltPackage> build_package(const PackageJob& job, const Options& options,
                                   const PackageTargets& targets, const PackageFiles& files,
                                   ProcessRunner& processes, Progress& progress,
                                   std::stop_token stop);

}  // namespace dsi

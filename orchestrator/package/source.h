#pragma once

// What --deepspeed and --package name, and how it becomes a folder that can be built.

#include <filesystem>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/base/result.h"
#include "orchestrator/package/python.h"
#include "orchestrator/ports/process.h"

namespace dsi {

enum class SourceKind { kFolder, kSdist, kWheel, kRequirement };

struct PackageSource {
  SourceKind kind = SourceKind::kFolder;
  std::filesystem::path path;  // Absolute; empty for a requirement.
  std::string requirement;     // "deepspeed==0.19.8"
};

// Looks at the disk only. A folder or file that is there comes before a requirement of that name.
Result<PackageSource> read_source(std::string_view text);

// "DeepSpeed[all]>=0.10" → "deepspeed".
std::string requirement_name(std::string_view requirement);

// A requirement becomes the sdist or wheel that pip finds; anything else stays as it is. An sdist
// is preferred for the names in `compile`, since what an index has is not made for these hosts.
struct FetchRequest {
  PackageSource source;
  std::string index;  // -m; empty: pip's own.
  bool compile = false;
};
Result<PackageSource> fetch(const FetchRequest& request, const BuildPython& python,
                            const std::filesystem::path& cache, ProcessRunner& processes,
                            std::stop_token stop);

// A copy of the project in `source` (a folder or an sdist) below `folder`, which must be empty. The
// user's tree is only read: a build writes into the tree it builds, and that one may be shared,
// read only, or in use. Left out are what is no source: .git, dist/, *.egg-info, caches, and build/
// unless `keep_build`.
Result<void> copy_source(const PackageSource& source, const std::filesystem::path& folder,
                         bool keep_build);

// SHA-256 of what copy_source() would copy: names, modes, links and contents.
Result<std::string> digest_source(const PackageSource& source, bool keep_build);

// The text of the files that say how it is built: setup.py, pyproject.toml and so on of its first
// folder, one behind the other. Empty: a wheel.
Result<std::string> read_build_files(const PackageSource& source);

// The commit and branch of the folder's git repository, for the key of a build; empty: none.
struct GitState {
  std::filesystem::path git_dir;  // Absolute.
  std::string commit;
  std::string branch;
};
GitState read_git(const std::filesystem::path& folder, ProcessRunner& processes,
                  std::stop_token stop);

// -e: git submodule update --init --recursive.
Result<void> update_submodules(const PackageSource& source, ProcessRunner& processes,
                               std::stop_token stop);

}  // namespace dsi

#pragma once

// Debian packages of any suite, through apt, without rights and without a trace in this system: apt
// gets folders of its own, below the cache.

#include <filesystem>
#include <stop_token>
#include <string>
#include <vector>

#include "orchestrator/base/result.h"
#include "orchestrator/environment/base.h"
#include "orchestrator/environment/lock.h"
#include "orchestrator/ports/process.h"
#include "orchestrator/progress.h"

namespace dsi {

// What is asked of a base, whatever it is for: a shell and what belongs to it, compiler and tools,
// what the ops need, and `more`.
std::vector<std::string> packages_for(const DebianBase& base, int compiler, bool torch,
                                      const std::vector<std::string>& more);

// The mirror of Debian that this machine's apt uses, from the output of
// `apt-get update --print-uris`; empty: none. Pure.
std::string mirror_in(const std::string& uris);

// apt's view of a base on a mirror.
class DebianArchive {
 public:
  // Fetches the lists of packages. `mirror` empty: the one of this machine. An error names what
  // cannot be reached.
  static Result<DebianArchive> open(const DebianBase& base, const std::string& architecture,
                                    const std::string& mirror, const std::filesystem::path& cache,
                                    ProcessRunner& processes, Progress& progress,
                                    std::stop_token stop);

  // These packages and all that they depend on, sorted, with the digests that the signed lists
  // give.
  Result<std::vector<LockedPackage>> resolve(const std::vector<std::string>& names) const;

  // The .deb of each, below `folder` and named by digest; one that is there is not fetched. An
  // error names the first that the mirror has no more, or has with other content.
  Result<void> fetch(const std::vector<LockedPackage>& packages,
                     const std::filesystem::path& folder) const;

  const std::string& mirror() const { return mirror_; }

 private:
  DebianArchive(std::filesystem::path folder, std::string mirror, ProcessRunner& processes,
                std::stop_token stop)
      : folder_(std::move(folder)),
        mirror_(std::move(mirror)),
        processes_(&processes),
        stop_(std::move(stop)) {}
  Result<ProcessResult> apt(std::vector<std::string> argv,
                            const std::filesystem::path& folder = {}) const;
  Result<void> look_up(std::vector<LockedPackage>& packages) const;

  std::filesystem::path folder_;
  std::string mirror_;
  ProcessRunner* processes_;
  std::stop_token stop_;
};

}  // namespace dsi

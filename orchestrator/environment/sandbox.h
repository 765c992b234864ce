#pragma once

// Runs programs inside a root: a Debian in a folder. Its files are /, read-only; folders of this
// machine that a build needs are there under their own names, so that no path has to be translated;
// there is no network, and nothing of the caller's environment. By bubblewrap, which needs user
// namespaces or to be root, and no rights on this machine.

#include <filesystem>
#include <string>
#include <vector>

#include "orchestrator/ports/process.h"

namespace dsi {

// A folder of this machine that is seen inside, absolute and normal.
struct ShownFolder {
  std::filesystem::path path;
  bool writable = false;
};

// bwrap's command line. Reads which folders the root has.
std::vector<std::string> sandbox_command(const std::filesystem::path& root,
                                         std::vector<ShownFolder> shown, const Command& command);

class Sandbox : public ProcessRunner {
 public:
  Sandbox(ProcessRunner& outside, std::filesystem::path root, std::vector<ShownFolder> shown)
      : outside_(outside), root_(std::move(root)), shown_(std::move(shown)) {}

  // As every runner; the program is looked up in the root.
  Result<ProcessResult> run(const Command& command, Deadline deadline, std::stop_token stop,
                            const OnLine& on_line = {}) override;

  // An error says what this machine lacks or forbids.
  Result<void> check(std::stop_token stop);

 private:
  ProcessRunner& outside_;
  std::filesystem::path root_;
  std::vector<ShownFolder> shown_;
};

}  // namespace dsi

#pragma once

#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "orchestrator/base/deadline.h"
#include "orchestrator/base/result.h"

namespace dsi {

struct Command {
  std::vector<std::string> argv;  // argv[0] is looked up in PATH; no shell is involved.
  std::filesystem::path folder;   // Empty: the caller's.
  std::vector<std::pair<std::string, std::string>> environment;  // Added to the caller's.
  std::string input{};                                           // On its standard input.
};

struct ProcessResult {
  int exit_code = -1;  // -1 if a signal ended it.
  int signal = 0;
  std::string out;
  std::string err;

  bool ok() const { return exit_code == 0; }
};

// Runs programs on this machine. Thread-safe.
class ProcessRunner {
 public:
  // Called for each line of standard output, without its newline, from the thread that called
  // run().
  using OnLine = std::function<void(std::string_view)>;

  virtual ~ProcessRunner() = default;

  // Waits until the process ends. At the deadline, or when a stop is asked for, the process and its
  // whole process group get SIGTERM, two seconds later SIGKILL, and an error is returned. A process
  // that ran and failed is a result, not an error. A program that is not there is an error.
  virtual Result<ProcessResult> run(const Command& command, Deadline deadline, std::stop_token stop,
                                    const OnLine& on_line = {}) = 0;
};

}  // namespace dsi

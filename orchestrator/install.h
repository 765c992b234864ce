#pragma once

// The program's flow, one command after the other, from the hosts to the record.

#include <iosfwd>
#include <stop_token>

#include "orchestrator/base/result.h"
#include "orchestrator/environment/root.h"
#include "orchestrator/folders.h"
#include "orchestrator/options.h"
#include "orchestrator/ports/process.h"
#include "orchestrator/ports/remote_host.h"
#include "orchestrator/ports/webhook.h"
#include "orchestrator/progress.h"

namespace dsi {

inline constexpr int kExitOk = 0;
inline constexpr int kExitSomeFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitBuild = 3;
inline constexpr int kExitRefused = 4;
inline constexpr int kExitInterrupted = 130;

// What the flow works with; main.cc fills it with the real things.
struct World {
  Folders folders;
  ProcessRunner& processes;
  Connector& ssh;
  Connector& local;
  Connector& slurm;
  Webhook& webhook;
  Progress& progress;
  std::ostream& out;
  std::stop_token drain;            // The first ^C.
  std::stop_token abort;            // The second.
  const BuildRoot* root = nullptr;  // Where ops are compiled (--env); none: on this machine.
};

// An error that ended the whole run, with the exit code it means.
struct RunError {
  int exit_code = kExitUsage;
  Error error;
};

// Runs the command and prints its result. Returns the exit code.
tl::expected<int, RunError> run_command(const Options& options, World& world);

}  // namespace dsi

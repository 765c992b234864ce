#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "orchestrator/base/result.h"

namespace dsi {

// A program to start with its three streams given. Descriptors stay the caller's.
struct SpawnRequest {
  std::vector<std::string> argv;                                 // argv[0] is looked up in PATH.
  std::filesystem::path folder;                                  // Empty: the caller's.
  std::vector<std::pair<std::string, std::string>> environment;  // Added to the caller's.
  int in = -1;
  int out = -1;
  int err = -1;
};

// Starts it in a process group of its own (so that what it starts can be ended with it, and a ^C in
// the terminal is ours to handle), with default signal handling and no other descriptor of ours.
Result<pid_t> spawn(const SpawnRequest& request);

// SIGTERM to the process group, two seconds later SIGKILL; reaps it. Returns wait(2)'s status.
int end_process_group(pid_t leader);

// "SIGTERM" is "TERM": as SSH names signals; "15" if it has no name.
std::string signal_name(int signal);

}  // namespace dsi

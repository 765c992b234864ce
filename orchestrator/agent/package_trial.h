#pragma once

// The modules of a package, tried by an install: really, by bin/ds-package, or as remembered. It is
// what trial.h is for ops, and rests on the same (docs/adr/0004).

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "orchestrator/agent/prefix.h"
#include "orchestrator/agent/protocol.h"
#include "orchestrator/agent/remembered.h"
#include "orchestrator/agent/trial.h"

namespace dsi::agent {

// What an import of the modules rested on, as bin/ds-package tells it after it has tried them. The
// files whose SHA-256 it compares each time are not among them.
struct RestsOn {
  std::vector<std::string> files;
  std::vector<std::string> own;  // What that run has itself made or changed a moment ago.
};
// Of its "rests_on": {"files": {folder: [name]}, "own": likewise}.
std::optional<RestsOn> parse_rests_on(const nlohmann::json& told);

// The environment by its interpreter, and with `drop_in` with our ops in it.
Circumstances package_circumstances(const std::string& release, const std::string& python,
                                    bool drop_in);

// The rows as they were, if every one was ok and nothing that they rest on has changed. That the
// package itself is whole is the caller's to see.
std::optional<std::vector<protocol::OpRow>> recall_package(const Prefix& prefix,
                                                           const Circumstances& now);

// What the next install may recall: nothing, unless every row is ok.
Trial package_trial(std::vector<protocol::OpRow> rows, const std::optional<RestsOn>& rests_on,
                    Circumstances circumstances, std::chrono::system_clock::time_point start);

}  // namespace dsi::agent

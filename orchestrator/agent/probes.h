#pragma once

// Does each op of a release load and compute on this node? Every op is tried in a process of its
// own (ds-probe); what that process does, dies of or prints decides one row.

#include <chrono>
#include <string>
#include <vector>

#include "orchestrator/agent/protocol.h"
#include "orchestrator/agent/release.h"

namespace dsi::agent {

struct ProbeSettings {
  std::vector<std::string> torch_folders;
  std::chrono::seconds timeout{60};  // For one op.
};

// One row for each op and device, in the manifest's order. `folder` is the release's path; `damage`
// what find_damage() says of it: an op with a damaged library is not run.
std::vector<protocol::OpRow> probe_ops(const std::string& folder, const Manifest& manifest,
                                       const std::vector<Damage>& damage,
                                       const ProbeSettings& settings);

// What a dlopen error means: the row's status and a detail for people.
struct Verdict {
  std::string status;
  std::string detail;
};
Verdict explain_loader(std::string_view dlerror_text, std::string_view library);

}  // namespace dsi::agent

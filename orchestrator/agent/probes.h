#pragma once

// Does each op of a release load and compute on this node? Every op is tried in a process of its
// own (ds-probe); what that process does, dies of or prints decides one row.
//
// If several ops need libtorch, it is loaded once and the ops' processes are forked from there
// (shared_load.h). That is for speed, and may make no row worse or better: an op that is refused,
// crashes or computes wrong numbers there is tried again in a process that has loaded nothing
// before, and it is that process's row which counts.

#include <chrono>
#include <string>
#include <vector>

#include "orchestrator/agent/protocol.h"
#include "orchestrator/agent/release.h"
#include "orchestrator/agent/torch.h"

namespace dsi::agent {

struct Surroundings {
  Torch torch;               // Looked for only if an op needs it.
  std::string library_path;  // The probes' LD_LIBRARY_PATH.
};
Surroundings look_around(const Manifest& manifest, const std::vector<std::string>& torch_folders);

struct Probed {
  protocol::OpRow row;
  // Of an op that is ok: the files that its process had loaded. Empty if that is not known in full.
  std::vector<std::string> files;
};

// One for each op and device, in the manifest's order. `folder` is the release's path; `damage`
// what find_damage() says of it: an op with a damaged library is not run. Nor is one with a row in
// `known`. `timeout` is for one op.
std::vector<Probed> probe_ops(const std::string& folder, const Manifest& manifest,
                              const std::vector<Damage>& damage, const Surroundings& surroundings,
                              std::chrono::seconds timeout,
                              const std::vector<protocol::OpRow>& known = {});

// What a dlopen error means: the row's status and a detail for people. `symbol`: what the C++ name
// in it stands for, if that is known.
struct Verdict {
  std::string status;
  std::string detail;
};
Verdict explain_loader(std::string_view dlerror_text, std::string_view library,
                       std::string_view symbol);

}  // namespace dsi::agent

#pragma once

// The ops of a release in the prefix, tried by an install: really, or as remembered.

#include <string>
#include <vector>

#include "orchestrator/agent/prefix.h"
#include "orchestrator/agent/protocol.h"
#include "orchestrator/agent/remembered.h"
#include "orchestrator/manifest.h"

namespace dsi::agent {

struct Trial {
  std::vector<protocol::OpRow> rows;
  Remembered remembered;
  bool news = false;  // What is remembered is not what is written down.
};

// The release is whole: the SHA-256 of each of its files was right a moment ago. With `may_recall`,
// an op that was ok and for which nothing has changed is not run.
Trial try_ops(const Prefix& prefix, const std::string& id, const Manifest& manifest,
              const protocol::InstallRequest& request, bool may_recall);

// Writes down what the next install may recall. Only for speed: an error is a note, no failure.
Result<void> remember(const Prefix& prefix, const Trial& trial);

}  // namespace dsi::agent

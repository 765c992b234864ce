#pragma once

// Who is told how a run ended: a command, a webhook, or both. Whatever becomes of that changes
// nothing of the run.

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/options.h"
#include "orchestrator/ports/process.h"
#include "orchestrator/ports/webhook.h"
#include "orchestrator/report.h"

namespace dsi {

struct Ending {
  const RunReport& report;
  std::string by;                // "user@head"
  std::filesystem::path record;  // Its folder; empty: there is none.
};

// What happened, for people: a few sentences without a line break.
std::string paragraph_of(const Ending& ending);

// The body of the webhook: {"text": the paragraph, "run", "command", "exit_code", "by", "release",
// "package", "hosts", "counts": {result: hosts}, "not_well": [host], "seconds", "record"}. Chat
// systems show "text".
std::string json_of(const Ending& ending);

// A URL as it may be shown: scheme, host and port; of the rest only that there is one.
std::string without_secrets(std::string_view url);

// Tells everybody whom the options name, each within the options' limit, also after an interrupt.
// What went wrong, a warning for each.
std::vector<std::string> notify(const Options& options, const Ending& ending,
                                ProcessRunner& processes, Webhook& webhook);

}  // namespace dsi

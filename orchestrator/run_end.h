#pragma once

// What is kept and told of a run once it has ended, in whatever way.

#include <optional>
#include <string>

#include "orchestrator/install.h"
#include "orchestrator/record.h"
#include "orchestrator/report.h"

namespace dsi {

// Filled as far as the run comes.
struct RunEnd {
  RunReport report;
  std::optional<Record> record;
  std::string by;  // "user@head"
};

// The run ended before any host had a row: the error is what is kept of it.
void end_with(const RunError& error, RunEnd& end, World& world);

// Tells whom the options name; what goes wrong with that is a warning, here and in the record.
void tell(const Options& options, RunEnd& end, World& world);

}  // namespace dsi

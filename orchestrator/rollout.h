#pragma once

// How a run goes over its hosts: batch after batch, each batch taken out of service first if jobs
// run there, as long as no more hosts failed than may and the window is open.

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/base/result.h"
#include "orchestrator/deploy.h"
#include "orchestrator/drain.h"
#include "orchestrator/install.h"
#include "orchestrator/plan.h"
#include "orchestrator/report.h"
#include "orchestrator/survey.h"

namespace dsi {

struct Pace {
  using Clock = std::chrono::steady_clock;
  std::vector<std::vector<std::size_t>> batches;  // Numbers of hosts.
  std::size_t failures_allowed = 0;               // Before the next batch.
  std::optional<Clock::time_point> closes;        // Nothing is begun later.
  std::string window;                             // As it was said.
  std::chrono::seconds drain_limit{0};            // Until a host must be free of jobs.

  bool closed() const { return closes && Clock::now() >= *closes; }
};
// What the options say, for a run that began at `begin`.
Result<Pace> pace_of(const Options& options, const std::vector<PlannedHost>& hosts,
                     Pace::Clock::time_point begin);

// What is done. `begin` and `end` are called around the work on hosts that are worked on side by
// side (a batch, or those of it that are free of jobs), with their numbers; both may be empty.
struct Steps {
  std::string_view verb;  // "Installing"
  std::function<HostReport(Session&)> work;
  std::function<void(const std::vector<std::size_t>&)> begin = {};
  std::function<void(const std::vector<std::size_t>&)> end = {};
};

// A row for every host, in the plan's order; remarks are added to `remarks`. `drain` may be null.
std::vector<HostReport> roll_out(const Plan& plan, Survey& survey, const RunContext& run,
                                 World& world, const Pace& pace, const Steps& steps, Drain* drain,
                                 std::vector<HostRemark>& remarks);

}  // namespace dsi

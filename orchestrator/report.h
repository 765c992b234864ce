#pragma once

// What came out, as values; report.cc prints them for people, report_json.cc for programs.

#include <chrono>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "orchestrator/agent/protocol.h"
#include "orchestrator/base/result.h"

namespace dsi {

enum class HostStatus { kInstalled, kUpToDate, kFailed, kUnreachable, kRefused, kNotTried };

// "installed", "up-to-date", "failed", "unreachable", "refused", "not-tried": the JSON's words.
const char* to_string(HostStatus status);

struct HostReport {
  std::string host;
  HostStatus status = HostStatus::kNotTried;
  std::string action;  // What the agent says it did: installed, repaired, rolled-back, ...
  std::string from;    // Release ids; empty: none.
  std::string to;
  std::uint64_t bytes_sent = 0;  // To this host, before SSH's own encryption and framing.
  std::chrono::duration<double> seconds{0};
  Error error;  // Of failed, unreachable and refused.
  std::vector<protocol::OpRow> ops;
};

struct RunReport {
  std::string run;  // Id of the run and of its record.
  std::string command;
  std::string release;               // Wanted release; empty for report, rollback, uninstall.
  std::vector<std::string> columns;  // Ops in the order to show.
  std::vector<HostReport> hosts;     // In the order of the hostfile.
  bool strict = false;
  bool interrupted = false;
  std::chrono::duration<double> seconds{0};
};

// 0 every host ok; 1 some host failed or unreachable, or with `strict` some op is not ok;
// 4 every host refused; 130 interrupted.
int exit_code(const RunReport& report);

struct Style {
  bool colour = false;
  int width = 80;  // Columns of the terminal.
};

// The matrix ops × hosts with identical hosts folded, each error and each op that is not ok with its
// reason once per group of hosts, and a last line with the counts.
void print_report(std::ostream& out, const RunReport& report, const Style& style);

// JSON Lines: version, host rows, op rows, summary.
void print_report_json(std::ostream& out, const RunReport& report);

}  // namespace dsi

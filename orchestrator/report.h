#pragma once

// What came out, as values; report.cc prints them for people, report_json.cc for programs.

#include <chrono>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "orchestrator/agent/protocol.h"
#include "orchestrator/base/result.h"
#include "orchestrator/terminal.h"

namespace dsi {

enum class HostStatus {
  kInstalled,
  kUpToDate,
  kFailed,
  kUnreachable,
  kRefused,
  kNotTried,
  kBusy,
  kHeld
};

// "installed", "up-to-date", "failed", "unreachable", "refused", "not-tried", "busy", "held":
// the JSON's words.
const char* to_string(HostStatus status);

struct HostReport {
  std::string host;
  HostStatus status = HostStatus::kNotTried;
  std::string action;  // What the agent says it did: installed, repaired, rolled-back, ...
  std::string from;    // Release ids; empty: none.
  std::string to;
  std::uint64_t bytes_sent = 0;  // To this host, before SSH's own encryption and framing.
  std::chrono::duration<double> seconds{0};
  Error error;  // Of failed, unreachable, refused, busy and held.
  std::vector<protocol::OpRow> ops;
  // Who has files of the release that was left, or because of whom it was not left.
  std::vector<protocol::BusyProcess> processes{};
  std::vector<std::string> releases{};  // All that it has, if it said so; the current one first.
  std::string prefix{};                 // Where; of a package the interpreter. Empty: not known.
};

// Something about a host that is no fault of the run and yet should be known.
struct HostRemark {
  std::string host;
  std::string text;  // Follows the host's name: "sent a chunk that was not what it should be".
};

struct RunReport {
  std::string run;  // Id of the run and of its record.
  std::string command;
  std::string release;               // Wanted release; empty for report, rollback, uninstall.
  std::string package;               // The Python package that it was about; empty: the ops.
  std::vector<std::string> columns;  // Ops in the order to show.
  std::vector<HostReport> hosts;     // In the order of the hostfile.
  std::vector<HostRemark> remarks;
  std::vector<std::string> warnings{};  // About the run as a whole.
  Error error{};                        // What ended it before there was a row of any host, and
  int error_exit = 0;                   // the exit code of that; 0: nothing did.
  bool strict = false;
  bool interrupted = false;
  std::chrono::duration<double> seconds{0};
};

// It has what the command was to bring about.
inline bool is_done(HostStatus status) {
  return status == HostStatus::kInstalled || status == HostStatus::kUpToDate;
}
// It has not, or, with `strict`, some op of it is not ok. A host that is held has not failed: it
// has what somebody wants it to have.
bool has_failed(const HostReport& host, bool strict);
// It has, and no op of it is broken: each is ok, or is not meant to work there (skipped,
// not-built).
bool is_sound(const HostReport& host);

// What a host is said to have come to, in the matrix, the counts and the JSON alike: for `install`
// the status's word (a repaired host is "installed"); for every other command the agent's own word
// for what it did ("reported", "rolled-back", "uninstalled"), and the status's word where it did
// nothing.
std::string result_word(const RunReport& report, const HostReport& host);

// 0 every host ok; 1 some host failed or unreachable, or some but not all refused, or with `strict`
// some op is not ok (a wanted op that a host says nothing about is not ok); 4 every host refused;
// 130 interrupted.
int exit_code(const RunReport& report);

// The matrix ops × hosts with identical hosts folded, each error and each op that is not ok with
// its reason once per group of hosts, and a last line with the counts. No line of the matrix is
// wider than the terminal if that has at least 40 columns: it is turned or broken into several. The
// reasons are not broken, so that they can be searched for. What a node said is made safe for a
// terminal.
void print_report(std::ostream& out, const RunReport& report, const Style& style);

// JSON Lines, always valid UTF-8, in this order; a program must ignore keys it does not know:
//   {"type":"version","version":1,"ds_install":"0.1.0"}
//   {"type":"host","host","result","from","to","bytes_sent","seconds","error":{"what","help"}}
//       for each host in order. "result" is result_word() of it: for `install` one of installed,
//       up-to-date, failed, unreachable, refused, busy, held and not-tried. "from" and "to"
//       are null if there is none; "error" is there only if there is one.
//       "processes": [{"pid","user","command","release"}], "releases" (all that the host has, the
//       current one first) and "prefix" are there only if there are any or it is known.
//   {"type":"op","host","op","status","device","detail"}
//       for each op that a host reported.
//   {"type":"remark","host","text"}
//       for each remark.
//   {"type":"warning","text"}
//       for each warning about the run as a whole.
//   {"type":"error","what","help"}
//       if the run ended before there was a row of any host.
//   {"type":"summary","command","exit_code","strict","hosts","counts":{result:
//   hosts},"head_bytes_sent",
//    "seconds","run","release"}
//       "counts" always has failed, unreachable and refused, for `install` also installed and
//       up-to-date, and whatever else occurred; "release" is null if none was wanted.
void print_report_json(std::ostream& out, const RunReport& report);

}  // namespace dsi

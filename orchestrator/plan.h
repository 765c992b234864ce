#pragma once

// What a run would do, decided before anything is done. Pure: values in, a value out.

#include <iosfwd>
#include <string>
#include <vector>

#include "orchestrator/agent/protocol.h"
#include "orchestrator/base/result.h"
#include "orchestrator/report.h"

namespace dsi {

// What the first look at a host gave.
struct SurveyRow {
  std::string host;
  HostStatus status = HostStatus::kNotTried;  // kNotTried here: it answered, nothing is done yet.
  Error error;                                // If it did not answer as it should.
  protocol::Facts facts;
};

// What is to be installed, as far as it is known before the build.
struct Intention {
  std::string command;  // "install", "report", ...
  std::string release;  // Its id, if a bundle is given or the cache has it; else empty.
  std::string arch;     // Of the libraries.
  std::string source;   // "bundle ops.tar.zst", "3 ops with torch 1.13.1 and g++ 12.2.0".
  std::vector<std::string> ops;
};

enum class Action {
  kInstall,  // There is no release on the host.
  kReplace,  // There is another one.
  kVerify,   // It is there already: verified, and mended if need be.
  kDecide,   // Install or verify: the release's id is not known before the build.
  kLeave,    // The command changes nothing (report).
  kRollBack,
  kUninstall,
  kRefuse,  // Cannot work; nothing is done.
  kNone,    // Not reached.
};
const char* to_string(Action action);

struct PlannedHost {
  std::string host;
  Action action = Action::kNone;
  std::string from;    // Release there now; empty: none.
  std::string prefix;  // Where, on the host.
  HostStatus status = HostStatus::kNotTried;
  Error error;  // Of kRefuse and kNone.
};

struct Plan {
  Intention intention;
  std::vector<PlannedHost> hosts;  // In the order of the survey.

  bool all_refused() const;
};

Plan make_plan(const Intention& intention, const std::vector<SurveyRow>& survey);

void print_plan(std::ostream& out, const Plan& plan);
std::string plan_json(const Plan& plan);                    // One document, for the record.
void print_plan_json(std::ostream& out, const Plan& plan);  // JSON Lines, for --json.

}  // namespace dsi

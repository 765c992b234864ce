#pragma once

// What a run would do, decided before anything is done. Pure: values in, a value out.

#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "orchestrator/base/result.h"
#include "orchestrator/manifest.h"
#include "orchestrator/report.h"
#include "orchestrator/rules.h"

namespace dsi {

// What is to be installed, as far as it is known before the build.
struct Intention {
  std::string command;  // "install", "report", ...
  std::string release;  // Its id, if a bundle is given or the cache has it; else empty.
  std::string source;   // "bundle ops.tar.zst", "3 ops with torch 1.13.1 and g++ 12.2.0".
  std::vector<std::string> ops;
  // A Python package; before its build only what is known of it then.
  std::optional<ManifestPackage> package;
  std::uint64_t package_bytes = 0;  // Of its wheels.
  Requirements build;               // What is known of what it needs.
  bool ignore_holds = false;        // Hosts that are held are changed, too.
  std::string why = {};             // Of one of several: why those hosts get it.
};

enum class Action {
  kInstall,  // There is no release on the host.
  kReplace,  // There is another one.
  kVerify,   // It is there already: verified, and mended if need be.
  kDecide,   // Install or verify: the release's id is not known before the build.
  kLeave,    // The command changes nothing (report).
  kRollBack,
  kUninstall,
  kHold,    // Somebody wants it to keep what it has; nothing is done.
  kRefuse,  // Cannot work; nothing is done.
  kNone,    // Not reached.
};
const char* to_string(Action action);

struct PlannedHost {
  std::string host;
  std::size_t variant = 0;  // Which of Plan::variants it is about.
  Action action = Action::kNone;
  std::string from;    // Release there now; empty: none.
  std::string prefix;  // Where, on the host: a prefix, or the interpreter of an environment.
  HostStatus status = HostStatus::kNotTried;
  Error error;                        // Of kRefuse, kHold and kNone.
  std::vector<Finding> findings;      // What the rules say; of kRefuse the reasons, and warnings.
  std::vector<Undecided> undecided;   // Rules that would refuse it if they knew.
  std::vector<std::string> warnings;  // Of a package.
};

struct Plan {
  // At least one. Several: ops against several torches, which differ in all but the command.
  std::vector<Intention> variants;
  std::vector<PlannedHost> hosts;    // In the order of the survey.
  std::vector<std::string> ignored;  // Rules that were not asked (--ignore).

  bool all_refused() const;
};

// Rules are asked for an install only: what is there can always be looked at and taken away.
// `variant_of` says by host which of `variants` it is to get.
Plan make_plan(const std::vector<Intention>& variants, const std::vector<std::size_t>& variant_of,
               const std::vector<SurveyRow>& survey, const Rules& rules,
               const std::set<std::string>& ignored);
Plan make_plan(const Intention& intention, const std::vector<SurveyRow>& survey,
               const Rules& rules = default_rules(), const std::set<std::string>& ignored = {});

// "torch 1.13.0 ... for node[01-02]: the configuration names it", one for each of several variants.
std::vector<std::string> variants_of(const Plan& plan);

// One line for each warning, the hosts folded: "node[01-60]: the host's clock is ... [clock-off]";
// with what to do about it behind "help: " on a line of its own.
std::vector<std::string> warnings_of(const Plan& plan);
// The same of any hosts with what the rules say about them.
std::vector<std::string> folded_findings(
    const std::vector<std::pair<std::string, std::vector<Finding>>>& hosts, Severity severity);

// What could not be decided, one line for hosts of which the same is not known: "node3: could not
// be decided: glibc-too-old (node.libc.glibc is not known)".
std::vector<std::string> undecided_of(const Plan& plan);

void print_plan(std::ostream& out, const Plan& plan);
std::string plan_json(const Plan& plan);                    // One document, for the record.
void print_plan_json(std::ostream& out, const Plan& plan);  // JSON Lines, for --json.

}  // namespace dsi

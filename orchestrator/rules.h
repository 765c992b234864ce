#pragma once

// Which combinations of a host and a release cannot work, or work badly: a table in YAML. The
// program's own is rules.yaml, docs/rules.md explains both.
//
// Pure: rules, facts and requirements in, findings out. What is not known decides nothing: a rule
// speaks only if its condition is true, whatever the unknown might be.

#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/base/result.h"
#include "orchestrator/fact_table.h"

namespace dsi {

enum class Severity {
  kRefuse,  // The host is left as it is.
  kWarn,
  kOff,  // A site has taken the rule out of use.
};

// The condition of a rule, as a tree. rules_read.cc makes them, rules.cc evaluates them.
struct Condition;

struct Rule {
  std::string id;
  bool each_op = false;  // Asked once for each op of the release.
  std::shared_ptr<const Condition> when;
  Severity severity = Severity::kWarn;
  // With {field} for values; empty: nothing to say.
  std::string message;
  std::string required;
  std::string found;
  std::string remedy;
  std::string about;  // For the documentation: where the rule comes from.
};

using Rules = std::vector<Rule>;

// The program's own.
const Rules& default_rules();

// A table of rules. `file` is for messages. All mistakes at once, each as file:line:col.
Result<Rules> read_rules(std::string_view text, const std::filesystem::path& file);

// The program's own, then /etc/ds-install/rules.yaml if it is there, then `files`: a later rule
// replaces an earlier one with the same id in its place.
Result<Rules> load_rules(const std::vector<std::filesystem::path>& files,
                         const std::filesystem::path& site = "/etc/ds-install/rules.yaml");

// The ids, checked: an error names the one that is meant.
Result<std::set<std::string>> check_ignored(const Rules& rules,
                                            const std::vector<std::string>& ids);

// What a rule says about a host.
struct Finding {
  std::string rule;
  Severity severity = Severity::kWarn;
  std::string message;
  std::string required;
  std::string found;
  std::string remedy;
  friend bool operator==(const Finding&, const Finding&) = default;
};

// "async_io needs a newer C library (required GLIBC 2.38, found GLIBC 2.36) [glibc-too-old]".
std::string to_string(const Finding& finding);
nlohmann::json to_json(const Finding& finding);

std::vector<Finding> evaluate(const Rules& rules, const FactContext& context,
                              const std::set<std::string>& ignored);

// A rule that could refuse the host and does not, because of what the host could not be asked.
struct Undecided {
  std::string rule;
  std::vector<std::string> unknown;  // "node.libc.glibc": fields of the host, each once.
  friend bool operator==(const Undecided&, const Undecided&) = default;
};

// In the order of the rules. What is not known of the build is no fault of the host: rules that
// wait for it alone are not in it.
std::vector<Undecided> undecided(const Rules& rules, const FactContext& context,
                                 const std::set<std::string>& ignored);
nlohmann::json to_json(const Undecided& rule);

// The table for docs/rules.md.
std::string rules_document(const Rules& rules);

}  // namespace dsi

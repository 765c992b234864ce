#include "orchestrator/rules.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "orchestrator/base/file.h"
#include "orchestrator/condition.h"
#include "orchestrator/rules_default.h"
#include "orchestrator/text.h"

namespace dsi {

namespace {

namespace fs = std::filesystem;

// The text with each {field} as its value. The reader has checked that there are no others.
std::string filled(std::string_view text, const FactContext& context, const std::string& ops) {
  std::string out;
  while (!text.empty()) {
    std::size_t open = std::min(text.find('{'), text.size());
    out += text.substr(0, open);
    text.remove_prefix(open);
    std::size_t close = text.find('}');
    if (close == std::string_view::npos) break;
    std::string_view name = text.substr(1, close - 1);
    text.remove_prefix(close + 1);
    const FactSpec* fact = find_fact(name);
    if (name == "op.name" && !ops.empty()) {
      out += ops;
    } else if (fact != nullptr) {
      out += fact_text(*fact, fact->read(context));
    }
  }
  return out;
}

Finding finding_of(const Rule& rule, const FactContext& context, const std::string& ops) {
  return {rule.id,
          rule.severity,
          filled(rule.message, context, ops),
          filled(rule.required, context, ops),
          filled(rule.found, context, ops),
          filled(rule.remedy, context, ops)};
}

void evaluate_each_op(const Rule& rule, FactContext context, std::vector<Finding>& findings) {
  // Ops that need the same and find the same are one finding.
  std::vector<std::pair<const OpRequirements*, std::string>> groups;
  for (const OpRequirements& op : context.build.ops) {
    context.op = &op;
    if (holds(*rule.when, context) != true) continue;
    Finding here = finding_of(rule, context, "*");
    auto same = std::find_if(groups.begin(), groups.end(), [&](const auto& group) {
      FactContext other = context;
      other.op = group.first;
      return finding_of(rule, other, "*") == here;
    });
    if (same == groups.end()) {
      groups.emplace_back(&op, op.name);
    } else {
      same->second += ", " + op.name;
    }
  }
  for (const auto& [op, names] : groups) {
    context.op = op;
    findings.push_back(finding_of(rule, context, names));
  }
}

}  // namespace

const Rules& default_rules() {
  // A mistake in it is a mistake in the program: a test reads it, and says which.
  static const Rules kRules = read_rules(kDefaultRules, "rules.yaml").value();
  return kRules;
}

Result<Rules> load_rules(const std::vector<fs::path>& files, const fs::path& site) {
  Rules rules = default_rules();
  auto add = [&](const fs::path& file) -> Result<void> {
    auto text = read_file(file);
    if (!text) {
      return fail_with_help("the rules cannot be read: " + printable(text.error().what),
                            "name a file that is there with --rules");
    }
    DSI_TRY(Rules more, read_rules(*text, file));
    for (Rule& rule : more) {
      auto known = std::find_if(rules.begin(), rules.end(),
                                [&](const Rule& other) { return other.id == rule.id; });
      if (known != rules.end()) {
        *known = std::move(rule);
      } else {
        rules.push_back(std::move(rule));
      }
    }
    return {};
  };
  std::error_code error;
  const bool there = !site.empty() && fs::exists(site, error);
  if (error) {
    return fail_with_help(fmt::format("cannot look at {}: {}", site.string(), error.message()),
                          "a site's rules must not be passed over; let this user read them");
  }
  if (there) DSI_CHECK(add(site));
  for (const fs::path& file : files) DSI_CHECK(add(file));
  return rules;
}

Result<std::set<std::string>> check_ignored(const Rules& rules,
                                            const std::vector<std::string>& ids) {
  std::vector<std::string> known;
  for (const Rule& rule : rules) known.push_back(rule.id);
  for (const std::string& id : ids) {
    if (std::find(known.begin(), known.end(), id) != known.end()) continue;
    std::string meant = closest(id, known);
    return fail_with_help(
        fmt::format("--ignore names no rule: {}", printable(id)),
        meant.empty() ? "docs/rules.md lists the rules" : fmt::format("did you mean {}?", meant));
  }
  return std::set<std::string>(ids.begin(), ids.end());
}

std::string to_string(const Finding& finding) {
  std::string sides;
  if (!finding.required.empty()) sides = "required " + finding.required;
  if (!finding.found.empty()) sides += (sides.empty() ? "found " : ", found ") + finding.found;
  return fmt::format("{}{} [{}]", finding.message, sides.empty() ? "" : " (" + sides + ")",
                     finding.rule);
}

nlohmann::json to_json(const Finding& finding) {
  nlohmann::json row = {{"rule", finding.rule},
                        {"severity", finding.severity == Severity::kRefuse ? "refuse" : "warn"},
                        {"message", finding.message}};
  if (!finding.required.empty()) row["required"] = finding.required;
  if (!finding.found.empty()) row["found"] = finding.found;
  if (!finding.remedy.empty()) row["remedy"] = finding.remedy;
  return row;
}

std::vector<Finding> evaluate(const Rules& rules, const FactContext& context,
                              const std::set<std::string>& ignored) {
  std::vector<Finding> findings;
  for (const Rule& rule : rules) {
    if (rule.severity == Severity::kOff || ignored.count(rule.id) != 0) continue;
    if (rule.each_op) {
      evaluate_each_op(rule, context, findings);
    } else if (holds(*rule.when, context) == true) {
      findings.push_back(finding_of(rule, context, ""));
    }
  }
  return findings;
}

std::vector<Undecided> undecided(const Rules& rules, const FactContext& context,
                                 const std::set<std::string>& ignored) {
  std::vector<Undecided> all;
  for (const Rule& rule : rules) {
    if (rule.severity != Severity::kRefuse || ignored.count(rule.id) != 0) continue;
    Undecided one{rule.id, {}};
    auto ask = [&](const FactContext& about) {
      std::vector<const FactSpec*> fields = unknown_in(*rule.when, about);
      for (const FactSpec* field : fields) {
        std::string name(field->name);
        if (name.starts_with("node.") &&
            std::find(one.unknown.begin(), one.unknown.end(), name) == one.unknown.end()) {
          one.unknown.push_back(name);
        }
      }
    };
    if (rule.each_op) {
      FactContext about = context;
      for (const OpRequirements& op : context.build.ops) {
        about.op = &op;
        ask(about);
      }
    } else {
      ask(context);
    }
    if (!one.unknown.empty()) all.push_back(std::move(one));
  }
  return all;
}

nlohmann::json to_json(const Undecided& rule) {
  return {{"rule", rule.rule}, {"unknown", rule.unknown}};
}

std::string rules_document(const Rules& rules) {
  std::string out;
  auto cell = [](std::string text) {
    for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) {
      text.insert(at, "\\");
    }
    return text;
  };
  out += "| rule | says | required | found | what to do | from |\n|---|---|---|---|---|---|\n";
  for (const Rule& rule : rules) {
    const char* verb = rule.severity == Severity::kRefuse ? "refuses"
                       : rule.severity == Severity::kWarn ? "warns"
                                                          : "off";
    out += fmt::format("| `{}` | {}: {} | {} | {} | {} | {} |\n", rule.id, verb, cell(rule.message),
                       cell(rule.required), cell(rule.found), cell(rule.remedy), cell(rule.about));
  }
  out += "\n| operator | for | true if the field is |\n|---|---|---|\n";
  const std::map<char, const char*> types = {{'t', "text"},  {'v', "version"}, {'n', "number"},
                                             {'b', "bytes"}, {'s', "seconds"}, {'f', "yes or no"},
                                             {'l', "list"}};
  for (const OperatorSpec& op : operator_table()) {
    std::string list;
    for (char type : op.types) list += (list.empty() ? "" : ", ") + std::string(types.at(type));
    out += fmt::format("| `{}` | {} | {} |\n", op.name, list, cell(std::string(op.help)));
  }
  out += "\n| field | type | what it is |\n|---|---|---|\n";
  for (const FactSpec& fact : fact_table()) {
    out += fmt::format("| `{}` | {} | {} |\n", fact.name, to_string(fact.type),
                       cell(std::string(fact.help)));
  }
  return out;
}

}  // namespace dsi

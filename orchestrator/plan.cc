#include "orchestrator/plan.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <tuple>

#include "orchestrator/base/nodeset.h"
#include "orchestrator/package/check.h"
#include "orchestrator/text.h"

namespace dsi {

using nlohmann::json;

const char* to_string(Action action) {
  switch (action) {
    case Action::kInstall:
      return "install";
    case Action::kReplace:
      return "replace";
    case Action::kVerify:
      return "verify";
    case Action::kDecide:
      return "install-or-verify";
    case Action::kLeave:
      return "look";
    case Action::kRollBack:
      return "roll back";
    case Action::kUninstall:
      return "uninstall";
    case Action::kHold:
      return "hold";
    case Action::kRefuse:
      return "refuse";
    case Action::kNone:
      return "none";
  }
  return "none";
}

bool Plan::all_refused() const {
  return !hosts.empty() && std::all_of(hosts.begin(), hosts.end(), [](const PlannedHost& host) {
    return host.action == Action::kRefuse;
  });
}

namespace {

Action action_for(const Intention& intention, const protocol::Facts& facts) {
  for (const char* command : {"report", "check", "hold", "unhold"}) {
    if (intention.command == command) return Action::kLeave;
  }
  if (intention.command == "rollback") return Action::kRollBack;
  if (intention.command == "uninstall") return Action::kUninstall;
  if (facts.current.empty()) return Action::kInstall;
  if (intention.release.empty()) return Action::kDecide;
  return facts.current == intention.release ? Action::kVerify : Action::kReplace;
}

// A hold keeps a host from being changed; what it has may be verified.
void respect_hold(const Intention& intention, const std::string& held, PlannedHost& host) {
  if (held.empty() || intention.ignore_holds) return;
  if (host.action == Action::kDecide) {
    host.warnings.push_back("held " + held + "; left as it is unless the build is what it has");
  }
  if (host.action != Action::kInstall && host.action != Action::kReplace &&
      host.action != Action::kRollBack && host.action != Action::kUninstall) {
    return;
  }
  host.action = Action::kHold;
  host.status = HostStatus::kHeld;
  host.error = {"held " + held, "ds-install unhold ends that; --ignore-holds goes past it"};
}

// What is to be done in a Python environment.
void plan_package(const Intention& intention, const SurveyRow& row, PlannedHost& host) {
  const ManifestPackage& package = *intention.package;
  host.prefix = "the user's Python";
  host.from.clear();
  if (!row.python) {
    // Only a plan leaves this open.
    host.action = intention.command == "install" ? Action::kInstall : Action::kLeave;
    host.warnings.push_back(
        "nothing of ds-install is there yet, so its Python is looked at when it installs");
    return;
  }
  const protocol::PythonFacts& python = *row.python;
  if (!python.executable.empty()) host.prefix = python.executable;
  host.from = python.current;
  if (auto at = python.installed.find(package.name);
      host.from.empty() && at != python.installed.end()) {
    host.from = fmt::format("{} {}", package.name, at->second);
  }
  PackageCheck check;
  if (intention.command == "install") {
    check = check_package(package, intention.package_bytes, python, row.facts);
  } else {
    check.refusal = python.error;
  }
  host.warnings = check.warnings;
  if (!check.refusal.what.empty()) {
    host.action = Action::kRefuse;
    host.status = HostStatus::kRefused;
    host.error = check.refusal;
    return;
  }
  protocol::Facts facts = row.facts;
  facts.current = host.from;
  host.action = action_for(intention, facts);
  respect_hold(intention, python.held, host);
}

PlannedHost plan_host(const Intention& intention, const SurveyRow& row) {
  PlannedHost host;
  host.host = row.host;
  host.from = row.facts.current;
  host.prefix = row.facts.prefix;
  host.status = row.status;
  if (row.status != HostStatus::kNotTried) {
    host.error = row.error;
    return host;
  }
  if (intention.package) {
    plan_package(intention, row, host);
  } else {
    host.action = action_for(intention, row.facts);
    respect_hold(intention, row.facts.held, host);
  }
  return host;
}

// All reasons at once: who mends one should not meet the next one in the next run.
void refuse_if_told(PlannedHost& host) {
  std::vector<std::string> ids;
  for (const Finding& finding : host.findings) {
    if (finding.severity != Severity::kRefuse) continue;
    host.error.what += (ids.empty() ? "" : "; ") + to_string(finding);
    if (host.error.help.empty()) host.error.help = finding.remedy;
    ids.push_back(finding.rule);
  }
  if (ids.empty()) return;
  host.action = Action::kRefuse;
  host.status = HostStatus::kRefused;
}

// How many hosts see the folder that a host's prefix is. On a local disk only it does.
std::map<std::string, std::size_t> count_shares(const std::vector<SurveyRow>& survey) {
  std::map<std::string, std::size_t> counts;
  for (const SurveyRow& row : survey) {
    if (!row.node.prefix.share.empty()) ++counts[row.node.prefix.share];
  }
  return counts;
}

json to_json(const PlannedHost& host) {
  json row = {{"host", host.host}, {"action", to_string(host.action)}, {"prefix", host.prefix}};
  row["from"] = host.from.empty() ? json(nullptr) : json(host.from);
  if (!host.error.what.empty()) {
    row["result"] = to_string(host.status);
    row["error"] = {{"what", host.error.what}, {"help", host.error.help}};
  }
  if (!host.warnings.empty()) row["warnings"] = host.warnings;
  for (const Finding& finding : host.findings) row["findings"].push_back(to_json(finding));
  for (const Undecided& rule : host.undecided) row["undecided"].push_back(to_json(rule));
  return row;
}

// Folded; those that did not answer get nothing.
std::string hosts_of(const Plan& plan, std::size_t variant) {
  std::vector<std::string> names;
  for (const PlannedHost& host : plan.hosts) {
    if (host.variant == variant && host.action != Action::kNone) names.push_back(host.host);
  }
  return names.empty() ? "no host" : fold_nodeset(names);
}

json to_json(const Intention& intention) {
  json row = {{"command", intention.command},
              {"release", intention.release.empty() ? json(nullptr) : json(intention.release)},
              {"arch", intention.build.arch},
              {"source", intention.source},
              {"ops", intention.ops}};
  if (intention.package) {
    row["package"] = {{"name", intention.package->name}, {"version", intention.package->version}};
  }
  return row;
}

json to_json(const Plan& plan) {
  json document = to_json(plan.variants.front());
  document["ignored"] = plan.ignored;
  if (plan.variants.size() < 2) return document;
  // No one of them is the plan's.
  document["release"] = nullptr;
  document["source"] = fmt::format("{} variants", plan.variants.size());
  for (std::size_t i = 0; i < plan.variants.size(); ++i) {
    json row = to_json(plan.variants[i]);
    row.erase("command");
    row["torch"] = plan.variants[i].build.torch;
    row["why"] = plan.variants[i].why;
    row["hosts"] = hosts_of(plan, i);
    document["variants"].push_back(std::move(row));
  }
  return document;
}

std::string indented(std::string text) {
  for (std::size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += 3) {
    text.insert(at + 1, "  ");
  }
  return text + '\n';
}

std::string dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

Plan make_plan(const std::vector<Intention>& variants, const std::vector<std::size_t>& variant_of,
               const std::vector<SurveyRow>& survey, const Rules& rules,
               const std::set<std::string>& ignored) {
  Plan plan{variants, {}, {ignored.begin(), ignored.end()}};
  plan.hosts.reserve(survey.size());
  auto shares = count_shares(survey);
  for (std::size_t i = 0; i < survey.size(); ++i) {
    const SurveyRow& row = survey[i];
    const Intention& intention = variants[variant_of[i]];
    PlannedHost& host = plan.hosts.emplace_back(plan_host(intention, row));
    host.variant = variant_of[i];
    if (host.action == Action::kNone || host.action == Action::kHold ||
        intention.command != "install") {
      continue;
    }
    auto shared = shares.find(row.node.prefix.share);
    FactContext context{row, intention.build, nullptr, shared != shares.end() ? shared->second : 1};
    host.findings = evaluate(rules, context, ignored);
    host.undecided = undecided(rules, context, ignored);
    refuse_if_told(host);
  }
  return plan;
}

Plan make_plan(const Intention& intention, const std::vector<SurveyRow>& survey, const Rules& rules,
               const std::set<std::string>& ignored) {
  return make_plan(std::vector{intention}, std::vector<std::size_t>(survey.size(), 0), survey,
                   rules, ignored);
}

std::vector<std::string> variants_of(const Plan& plan) {
  std::vector<std::string> lines;
  if (plan.variants.size() < 2) return lines;
  for (std::size_t i = 0; i < plan.variants.size(); ++i) {
    const Intention& variant = plan.variants[i];
    lines.push_back(fmt::format("{}, for {}: {}", variant.source, hosts_of(plan, i), variant.why));
  }
  return lines;
}

std::vector<std::string> folded_findings(
    const std::vector<std::pair<std::string, std::vector<Finding>>>& hosts, Severity severity) {
  // In the order in which they are met, so that the rules' order is kept.
  std::vector<std::pair<std::string, std::vector<std::string>>> groups;
  std::map<std::string, std::size_t> index;
  for (const auto& [host, findings] : hosts) {
    for (const Finding& finding : findings) {
      if (finding.severity != severity) continue;
      std::string text = to_string(finding);
      if (!finding.remedy.empty()) text += "\n  help: " + finding.remedy;
      auto [at, fresh] = index.emplace(text, groups.size());
      if (fresh) groups.emplace_back(std::move(text), std::vector<std::string>());
      groups[at->second].second.push_back(host);
    }
  }
  std::vector<std::string> lines;
  for (const auto& [text, names] : groups) {
    lines.push_back(fold_nodeset(names) + ": " + text);
  }
  return lines;
}

std::vector<std::string> warnings_of(const Plan& plan) {
  std::vector<std::pair<std::string, std::vector<Finding>>> hosts;
  for (const PlannedHost& host : plan.hosts) hosts.emplace_back(host.host, host.findings);
  return folded_findings(hosts, Severity::kWarn);
}

std::vector<std::string> undecided_of(const Plan& plan) {
  std::map<std::string, std::vector<std::string>> groups;
  for (const PlannedHost& host : plan.hosts) {
    std::string text;
    for (const Undecided& rule : host.undecided) {
      std::string fields;
      for (const std::string& field : rule.unknown) {
        fields += (fields.empty() ? "" : ", ") + field;
      }
      text += fmt::format("{}{} ({} not known)", text.empty() ? "" : ", ", rule.rule, fields);
    }
    if (!text.empty()) groups[text].push_back(host.host);
  }
  std::vector<std::string> lines;
  for (const auto& [text, hosts] : groups) {
    lines.push_back(fmt::format("{}: could not be decided: {}", fold_nodeset(hosts), text));
  }
  return lines;
}

void print_plan(std::ostream& out, const Plan& plan) {
  const Intention& what = plan.variants.front();
  const std::vector<std::string> variants = variants_of(plan);
  if (variants.empty()) {
    out << "Plan: " << what.command << ' ' << what.source << '\n';
    if (!what.release.empty()) out << "  release " << what.release << '\n';
  } else {
    out << "Plan: " << what.command << ' ' << variants.size() << " variants\n";
    for (std::size_t i = 0; i < variants.size(); ++i) {
      out << "  variant " << i + 1 << ": " << variants[i] << '\n';
      const std::string& release = plan.variants[i].release;
      if (!release.empty()) out << "    release " << release << '\n';
    }
  }
  // Hosts for which the same is to be done are one line, however many they are.
  std::map<std::tuple<Action, std::string, std::string, std::string, std::string,
                      std::vector<std::string>>,
           std::vector<std::string>>
      groups;
  for (const PlannedHost& host : plan.hosts) {
    // An error names its own host; without the name, errors of one kind fold.
    std::string what_fails = with_name_as(host.error.what, host.host, "it");
    std::vector<std::string> warnings;
    for (const std::string& warning : host.warnings) warnings.push_back(printable(warning));
    // What a host said cannot paint the terminal.
    groups[{host.action, printable(host.prefix), printable(host.from), printable(what_fails, true),
            printable(host.error.help, true), warnings}]
        .push_back(host.host);
  }
  for (const auto& [group, hosts] : groups) {
    const auto& [action, prefix, from, error, help, warnings] = group;
    out << "  " << fold_nodeset(hosts) << " (" << hosts.size()
        << (hosts.size() == 1 ? " host): " : " hosts): ");
    if (!error.empty()) {
      out << (action == Action::kRefuse ? "refused: "
              : action == Action::kHold ? ""
                                        : "cannot: ")
          << error << '\n';
      if (!help.empty()) out << "    help: " << help << '\n';
      continue;
    }
    switch (action) {
      case Action::kInstall:
        out << "install in " << prefix;
        break;
      case Action::kReplace:
        out << "replace " << from << " in " << prefix;
        break;
      case Action::kVerify:
        out << "already there in " << prefix << "; verify";
        break;
      case Action::kDecide:
        out << "replace " << from << " in " << prefix << " if the build differs";
        break;
      case Action::kLeave:
        out << "look at " << (from.empty() ? "nothing" : from) << " in " << prefix;
        break;
      case Action::kRollBack:
        out << "roll back from " << (from.empty() ? "nothing" : from) << " in " << prefix;
        break;
      case Action::kUninstall:
        out << "uninstall " << (from.empty() ? "nothing" : from) << " from " << prefix;
        break;
      case Action::kHold:
      case Action::kRefuse:
      case Action::kNone:
        break;
    }
    out << '\n';
    for (const std::string& warning : warnings) out << "    note: " << warning << '\n';
  }
  for (const std::string& warning : warnings_of(plan)) {
    out << "  warning: " << indented(printable(warning, true));
  }
  if (!plan.ignored.empty()) {
    out << "  ignored:";
    for (const std::string& rule : plan.ignored) out << ' ' << rule;
    out << '\n';
  }
}

std::string plan_json(const Plan& plan) {
  json document = to_json(plan);
  document["hosts"] = json::array();
  for (const PlannedHost& host : plan.hosts) document["hosts"].push_back(to_json(host));
  return document.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

void print_plan_json(std::ostream& out, const Plan& plan) {
  json head = to_json(plan);
  head["type"] = "plan";
  out << dump(head) << '\n';
  for (const PlannedHost& host : plan.hosts) {
    json row = to_json(host);
    row["type"] = "host";
    out << dump(row) << '\n';
  }
}

}  // namespace dsi

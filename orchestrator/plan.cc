#include "orchestrator/plan.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <tuple>

#include "orchestrator/base/nodeset.h"

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
  if (intention.command == "report") return Action::kLeave;
  if (intention.command == "rollback") return Action::kRollBack;
  if (intention.command == "uninstall") return Action::kUninstall;
  if (facts.current.empty()) return Action::kInstall;
  if (intention.release.empty()) return Action::kDecide;
  return facts.current == intention.release ? Action::kVerify : Action::kReplace;
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
  if (!intention.arch.empty() && row.facts.arch != intention.arch) {
    host.action = Action::kRefuse;
    host.status = HostStatus::kRefused;
    host.error = {fmt::format("the host is {}, the ops are for {}", row.facts.arch, intention.arch),
                  "build on a machine of the host's kind and install with --bundle"};
    return host;
  }
  host.action = action_for(intention, row.facts);
  return host;
}

json to_json(const PlannedHost& host) {
  json row = {{"host", host.host}, {"action", to_string(host.action)}, {"prefix", host.prefix}};
  row["from"] = host.from.empty() ? json(nullptr) : json(host.from);
  if (!host.error.what.empty()) {
    row["result"] = to_string(host.status);
    row["error"] = {{"what", host.error.what}, {"help", host.error.help}};
  }
  return row;
}

json to_json(const Intention& intention) {
  return {{"command", intention.command},
          {"release", intention.release.empty() ? json(nullptr) : json(intention.release)},
          {"arch", intention.arch},
          {"source", intention.source},
          {"ops", intention.ops}};
}

std::string dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

Plan make_plan(const Intention& intention, const std::vector<SurveyRow>& survey) {
  Plan plan{intention, {}};
  plan.hosts.reserve(survey.size());
  for (const SurveyRow& row : survey) plan.hosts.push_back(plan_host(intention, row));
  return plan;
}

void print_plan(std::ostream& out, const Plan& plan) {
  const Intention& what = plan.intention;
  out << "Plan: " << what.command << ' ' << what.source << '\n';
  if (!what.release.empty()) out << "  release " << what.release << '\n';
  // Hosts for which the same is to be done are one line, however many they are.
  std::map<std::tuple<Action, std::string, std::string, std::string, std::string>,
           std::vector<std::string>>
      groups;
  for (const PlannedHost& host : plan.hosts) {
    // An error names its own host; without the name, errors of one kind fold.
    std::string what_fails = host.error.what;
    for (std::size_t at = 0; (at = what_fails.find(host.host, at)) != std::string::npos;) {
      what_fails.replace(at, host.host.size(), "it");
    }
    groups[{host.action, host.prefix, host.from, what_fails, host.error.help}].push_back(host.host);
  }
  for (const auto& [group, hosts] : groups) {
    const auto& [action, prefix, from, error, help] = group;
    out << "  " << fold_nodeset(hosts) << " (" << hosts.size()
        << (hosts.size() == 1 ? " host): " : " hosts): ");
    if (!error.empty()) {
      out << (action == Action::kRefuse ? "refused: " : "cannot: ") << error << '\n';
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
      case Action::kRefuse:
      case Action::kNone:
        break;
    }
    out << '\n';
  }
}

std::string plan_json(const Plan& plan) {
  json document = to_json(plan.intention);
  document["hosts"] = json::array();
  for (const PlannedHost& host : plan.hosts) document["hosts"].push_back(to_json(host));
  return document.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

void print_plan_json(std::ostream& out, const Plan& plan) {
  json head = to_json(plan.intention);
  head["type"] = "plan";
  out << dump(head) << '\n';
  for (const PlannedHost& host : plan.hosts) {
    json row = to_json(host);
    row["type"] = "host";
    out << dump(row) << '\n';
  }
}

}  // namespace dsi

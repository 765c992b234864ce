#include "orchestrator/survey_text.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <unordered_map>

#include "orchestrator/base/nodeset.h"
#include "orchestrator/cuda_archs.h"
#include "orchestrator/fact_table.h"
#include "orchestrator/plan.h"
#include "orchestrator/text.h"

namespace dsi {

namespace {

using nlohmann::json;

// Of a survey nothing is built yet.
const Requirements kNoBuild;

// Values of one fact that more hosts have than anybody reads are cut off here.
constexpr std::size_t kMostValues = 8;
constexpr std::size_t kMostNames = 60;

FactValue value_of(const FactSpec& fact, const SurveyRow& row) {
  return fact.read(FactContext{row, kNoBuild, nullptr, 1});
}

std::string safe(const FactSpec& fact, const SurveyRow& row) {
  return printable(fact_text(fact, value_of(fact, row)));
}

std::string names_of(const std::vector<SurveyRow>& survey, const std::vector<std::size_t>& rows) {
  std::vector<std::string> names;
  names.reserve(rows.size());
  for (std::size_t row : rows) names.push_back(survey[row].host);
  return fold_nodeset(names);
}

std::string short_name(const FactSpec& fact) {
  return std::string(fact.name.substr(fact.name.find('.') + 1));
}

std::string hosts_text(std::size_t count) {
  return fmt::format("{} host{}", count, count == 1 ? "" : "s");
}

// Rows by the text of one fact, in the order in which the texts are met.
using Values = std::vector<std::pair<std::string, std::vector<std::size_t>>>;

Values values_of(const FactSpec& fact, const std::vector<SurveyRow>& survey,
                 const std::vector<std::size_t>& rows) {
  Values values;
  std::unordered_map<std::string, std::size_t> index;
  for (std::size_t row : rows) {
    std::string text = safe(fact, survey[row]);
    auto [at, fresh] = index.emplace(text, values.size());
    if (fresh) values.emplace_back(std::move(text), std::vector<std::size_t>());
    values[at->second].second.push_back(row);
  }
  return values;
}

// Of a list it is the members that differ: each with the hosts that lack it.
Values absences_of(const FactSpec& fact, const std::vector<SurveyRow>& survey,
                   const std::vector<std::size_t>& rows) {
  std::map<std::string, std::vector<std::size_t>> have;
  std::vector<std::size_t> looked_at;  // Of the others nothing is known, so nothing is absent.
  for (std::size_t row : rows) {
    FactValue value = value_of(fact, survey[row]);
    const auto* all = std::get_if<std::vector<std::string>>(&value);
    if (all == nullptr || !survey[row].node.known) continue;
    looked_at.push_back(row);
    for (const std::string& one : *all) have[one].push_back(row);
  }
  Values values;
  for (const auto& [name, with] : have) {
    if (with.size() == looked_at.size()) continue;
    std::vector<std::size_t> without;
    std::set_difference(looked_at.begin(), looked_at.end(), with.begin(), with.end(),
                        std::back_inserter(without));
    values.emplace_back("no " + printable(name), std::move(without));
  }
  return values;
}

void print_differences(std::ostream& out, const std::vector<SurveyRow>& survey,
                       const std::vector<std::size_t>& rows) {
  bool first = true;
  for (const FactSpec& fact : fact_table()) {
    if (fact.use != FactUse::kGroup) continue;
    Values values = values_of(fact, survey, rows);
    if (values.size() < 2) continue;
    if (fact.type == FactType::kList) values = absences_of(fact, survey, rows);
    if (first) out << "\nWhat differs:\n";
    first = false;
    std::string name = short_name(fact);
    std::size_t widest = 0;
    for (const auto& [text, with] : values) widest = std::max(widest, display_width(text));
    widest = std::min<std::size_t>(widest, 40);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i == kMostValues) {
        out << fmt::format("  {}and {} other values\n", padded("", 28), values.size() - i);
        break;
      }
      out << "  " << padded(i == 0 ? name : "", 28)
          << padded(truncated(values[i].first, 40), widest) << "  "
          << names_of(survey, values[i].second) << '\n';
    }
  }
}

// Least and most of what no build depends on.
void print_ranges(std::ostream& out, const std::vector<SurveyRow>& survey,
                  const std::vector<std::size_t>& rows) {
  bool first = true;
  for (const FactSpec& fact : fact_table()) {
    if (fact.use != FactUse::kRange) continue;
    std::map<double, std::vector<std::size_t>> by_value;
    for (std::size_t row : rows) {
      FactValue value = value_of(fact, survey[row]);
      if (const double* number = std::get_if<double>(&value)) by_value[*number].push_back(row);
    }
    if (by_value.empty()) continue;
    if (first) out << "\nAnd from host to host:\n";
    first = false;
    auto with_hosts = [&](const auto& entry) {
      std::string hosts = truncated(names_of(survey, entry.second), kMostNames);
      return fmt::format("{} ({})", fact_text(fact, FactValue(entry.first)), hosts);
    };
    std::string least = fact_text(fact, FactValue(by_value.begin()->first));
    std::string most = fact_text(fact, FactValue(by_value.rbegin()->first));
    out << "  " << padded(short_name(fact), 28)
        << (least == most ? least
                          : with_hosts(*by_value.begin()) + " to " + with_hosts(*by_value.rbegin()))
        << '\n';
  }
}

std::vector<PlannedHost> plan_all(const std::vector<SurveyRow>& survey, const Rules& rules,
                                  const std::set<std::string>& ignored) {
  // The plan of an install of which nothing is known yet: the same code, the same answers.
  Intention intention;
  intention.command = "install";
  return make_plan(intention, survey, rules, ignored).hosts;
}

// What code for all their devices is made for.
std::string archs_of(const std::vector<SurveyRow>& survey) {
  std::vector<std::string> capabilities;
  for (const SurveyRow& row : survey) {
    for (const NodeGpu& gpu : row.node.gpus) capabilities.push_back(gpu.compute_capability);
  }
  return to_string(archs_of_devices(capabilities));
}

// Errors of one kind fold, once they do not name their host.
void print_unlooked(std::ostream& out, const std::vector<SurveyRow>& survey,
                    const std::vector<std::size_t>& rows) {
  std::map<std::string, std::vector<std::size_t>> groups;
  for (std::size_t row : rows) {
    std::string what = survey[row].error.what;
    const std::string& host = survey[row].host;
    for (std::size_t at = 0; (at = what.find(host, at)) != std::string::npos; at += 2) {
      what.replace(at, host.size(), "it");
    }
    std::string help = survey[row].error.help;
    groups[printable(fmt::format("{}: {}", to_string(survey[row].status), what)) +
           (help.empty() ? "" : "\n  help: " + printable(help))]
        .push_back(row);
  }
  for (const auto& [text, hosts] : groups) out << names_of(survey, hosts) << ": " << text << '\n';
}

}  // namespace

HostGroups group_hosts(const std::vector<SurveyRow>& survey) {
  HostGroups result;
  std::unordered_map<std::string, std::size_t> index;
  for (std::size_t i = 0; i < survey.size(); ++i) {
    if (survey[i].status != HostStatus::kNotTried || !survey[i].error.what.empty()) {
      result.unlooked.push_back(i);
      continue;
    }
    std::string key;
    for (const FactSpec& fact : fact_table()) {
      if (fact.use != FactUse::kGroup) continue;
      key += fact_text(fact, value_of(fact, survey[i]));
      key += '\n';
    }
    auto [at, fresh] = index.emplace(std::move(key), result.groups.size());
    if (fresh) result.groups.emplace_back();
    result.groups[at->second].rows.push_back(i);
  }
  return result;
}

std::string describe(const NodeFacts& node) {
  if (!node.known) return "not looked at closely: " + printable(node.unknown_because);
  std::vector<std::string> parts;
  auto add = [&](const std::string& text) {
    if (!text.empty()) parts.push_back(printable(text));
  };
  add(node.arch);
  add(node.cpu.isa);
  if (!node.libc.glibc.empty()) {
    add("glibc " + node.libc.glibc);
  } else {
    add(node.libc.name);
  }
  std::map<std::pair<std::string, std::string>, int> devices;
  for (const NodeGpu& gpu : node.gpus) ++devices[{gpu.name, gpu.compute_capability}];
  for (const auto& [device, count] : devices) {
    add(fmt::format("{} × {}{}", count, device.first,
                    device.second.empty() ? "" : " (" + device.second + ")"));
  }
  if (devices.empty() && node.driver.devices_on_bus.value_or(0) > 0) {
    add(fmt::format("{} NVIDIA devices {}", *node.driver.devices_on_bus,
                    node.driver.version.empty() ? "without a driver" : "that cannot be asked"));
  }
  if (!node.driver.version.empty()) {
    add("driver " + node.driver.version +
        (node.driver.cuda.empty() ? "" : " (CUDA " + node.driver.cuda + ")"));
  }
  add(!node.torch.version.empty() ? "torch " + node.torch.version
      : !node.torch.path.empty()  ? "torch of unknown version"
      : node.torch.searched       ? "no torch found"
                                  : "torch unknown");
  if (auto at = node.packages.find("deepspeed"); at != node.packages.end()) {
    add("deepspeed " + at->second);
  }
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

void print_survey(std::ostream& out, const std::vector<SurveyRow>& survey, const Rules& rules,
                  const std::set<std::string>& ignored) {
  HostGroups found = group_hosts(survey);
  std::vector<std::size_t> looked;
  for (const HostGroup& group : found.groups) {
    out << fmt::format("{} ({})\n  {}\n", names_of(survey, group.rows),
                       hosts_text(group.rows.size()), describe(survey[group.rows[0]].node));
    looked.insert(looked.end(), group.rows.begin(), group.rows.end());
  }
  std::sort(looked.begin(), looked.end());
  print_differences(out, survey, looked);
  print_ranges(out, survey, looked);
  if (std::string archs = archs_of(survey); !archs.empty()) {
    out << "\nCode for all their devices: TORCH_CUDA_ARCH_LIST=\"" << archs << "\"\n";
  }
  if (!found.unlooked.empty()) {
    out << "\nNot looked at:\n";
    print_unlooked(out, survey, found.unlooked);
  }
  std::vector<std::pair<std::string, std::vector<Finding>>> named;
  for (PlannedHost& host : plan_all(survey, rules, ignored)) {
    named.emplace_back(host.host, std::move(host.findings));
  }
  for (auto [severity, title] : {std::pair{Severity::kRefuse, "An install would be refused:"},
                                 std::pair{Severity::kWarn, "Warnings:"}}) {
    std::vector<std::string> lines = folded_findings(named, severity);
    if (!lines.empty()) out << '\n' << title << '\n';
    for (const std::string& line : lines) out << printable(line, true) << '\n';
  }
  out << fmt::format(
      "\n{} in {} group{}{}\n", hosts_text(survey.size()), found.groups.size(),
      found.groups.size() == 1 ? "" : "s",
      found.unlooked.empty() ? "" : fmt::format(", {} not looked at", found.unlooked.size()));
}

void print_survey_json(std::ostream& out, const std::vector<SurveyRow>& survey, const Rules& rules,
                       const std::set<std::string>& ignored) {
  auto line = [&](const json& row) {
    out << row.dump(-1, ' ', false, json::error_handler_t::replace) << '\n';
  };
  HostGroups found = group_hosts(survey);
  std::vector<PlannedHost> planned = plan_all(survey, rules, ignored);
  for (std::size_t i = 0; i < survey.size(); ++i) {
    const SurveyRow& one = survey[i];
    bool looked = one.status == HostStatus::kNotTried && one.error.what.empty();
    json row = {{"type", "host"},
                {"host", one.host},
                {"result", looked ? "looked-at" : to_string(one.status)},
                {"release", one.facts.current.empty() ? json(nullptr) : json(one.facts.current)},
                {"findings", json::array()}};
    if (looked) {
      row["facts"] = to_json(one.node);
    } else {
      row["error"] = {{"what", one.error.what}, {"help", one.error.help}};
    }
    for (const Finding& finding : planned[i].findings) row["findings"].push_back(to_json(finding));
    for (const Undecided& rule : planned[i].undecided) row["undecided"].push_back(to_json(rule));
    line(row);
  }
  for (const HostGroup& group : found.groups) {
    json facts = json::object();
    for (const FactSpec& fact : fact_table()) {
      if (fact.use != FactUse::kGroup) continue;
      facts[std::string(fact.name)] = fact_text(fact, value_of(fact, survey[group.rows[0]]));
    }
    line({{"type", "group"},
          {"hosts", names_of(survey, group.rows)},
          {"count", group.rows.size()},
          {"facts", facts}});
  }
  line({{"type", "summary"},
        {"command", "survey"},
        {"hosts", survey.size()},
        {"groups", found.groups.size()},
        {"cuda_archs", archs_of(survey)},
        {"not_looked_at", found.unlooked.size()}});
}

}  // namespace dsi

#include "orchestrator/variants.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace dsi {
namespace {

// By what two builds of the same sources differ.
auto key_of(const Requirements& build) {
  return std::tie(build.arch, build.torch, build.torch_abi, build.torch_cuda);
}

std::size_t refusals(const Requirements& build, const SurveyRow& row, const Rules& rules,
                     const std::set<std::string>& ignored) {
  const std::vector<Finding> findings = evaluate(rules, FactContext{row, build}, ignored);
  return static_cast<std::size_t>(
      std::count_if(findings.begin(), findings.end(),
                    [](const Finding& finding) { return finding.severity == Severity::kRefuse; }));
}

}  // namespace

WantedTorches wanted_torches(const std::filesystem::path& option,
                             const std::map<std::string, HostOverrides>& per_host,
                             const std::vector<std::string>& hosts) {
  WantedTorches wanted;
  auto number_of = [&](const std::filesystem::path& path) {
    const auto at = std::find(wanted.paths.begin(), wanted.paths.end(), path);
    const auto number = static_cast<std::size_t>(at - wanted.paths.begin());
    if (at == wanted.paths.end()) wanted.paths.push_back(path);
    return number;
  };
  auto name_for = [&](const std::string& host) -> std::optional<std::string> {
    auto at = per_host.find(host);
    return at != per_host.end() ? at->second.build_torch : std::nullopt;
  };
  if (!std::all_of(hosts.begin(), hosts.end(), [&](const auto& host) { return name_for(host); })) {
    wanted.fallback = number_of(option);
  }
  for (const std::string& host : hosts) {
    const std::optional<std::string> path = name_for(host);
    wanted.named.push_back(path ? std::optional(number_of(*path)) : std::nullopt);
  }
  return wanted;
}

Variants choose_variants(const std::vector<Requirements>& builds, const WantedTorches& wanted,
                         const std::vector<SurveyRow>& rows, const Rules& rules,
                         const std::set<std::string>& ignored) {
  // The first that is equal stands for all.
  std::vector<std::size_t> same(builds.size());
  for (std::size_t i = 0; i < builds.size(); ++i) {
    while (key_of(builds[same[i]]) != key_of(builds[i])) ++same[i];
  }
  const std::size_t fallback = same.empty() ? 0 : same[wanted.fallback];

  std::vector<std::size_t> chosen(rows.size(), fallback);
  std::map<std::size_t, std::string> why;  // Only of builds that somebody asks for.
  for (std::size_t host = 0; host < rows.size(); ++host) {
    const SurveyRow& row = rows[host];
    const std::optional<std::size_t> named = wanted.named[host];
    if (named) chosen[host] = same[*named];
    if (row.status != HostStatus::kNotTried) continue;
    if (named) {
      why[chosen[host]] = "the configuration names it";
      continue;
    }
    std::size_t fewest = builds.size() == 1 ? 0 : refusals(builds[fallback], row, rules, ignored);
    for (std::size_t i = 0; i < builds.size() && fewest > 0; ++i) {
      if (same[i] != i) continue;
      const std::size_t count = refusals(builds[i], row, rules, ignored);
      if (count >= fewest) continue;
      fewest = count;
      chosen[host] = i;
    }
    why.emplace(chosen[host], chosen[host] == fallback ? "nothing else is said"
                                                       : "it goes with the torch that is there");
  }
  if (why.empty()) why.emplace(chosen.empty() ? fallback : chosen.front(), "nothing else is said");

  Variants variants;
  for (const auto& [build, reason] : why) {
    variants.builds.push_back(build);
    variants.why.push_back(reason);
  }
  for (std::size_t build : chosen) {
    const auto at = std::find(variants.builds.begin(), variants.builds.end(), build);
    // Of a host that did not answer, whose build nobody else wants.
    variants.of_host.push_back(
        at == variants.builds.end() ? 0 : static_cast<std::size_t>(at - variants.builds.begin()));
  }
  return variants;
}

}  // namespace dsi

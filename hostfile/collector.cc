#include "hostfile/collector.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "hostfile/host_name.h"
#include "orchestrator/base/nodeset.h"

namespace dsi {
namespace {

// Two ports of one address are two hosts: that is how containers and tunnels look.
std::string identity(const Host& host) {
  return canonical_name(host.name) + ' ' + std::to_string(host.port);
}

}  // namespace

std::size_t Collector::add_file(std::string name) {
  files_.push_back(std::move(name));
  return files_.size() - 1;
}

void Collector::report(std::size_t file, Diagnostic diagnostic) {
  if (diagnostic.severity == Diagnostic::kError) ++errors_;
  if (findings_.size() > kMaxFindings) return;
  Place place{file, diagnostic.line, diagnostic.column};
  if (findings_.size() == kMaxFindings) {
    full_ = true;
    ++errors_;
    diagnostic.severity = Diagnostic::kError;
    diagnostic.message = fmt::format("more than {} findings; the rest is not read", kMaxFindings);
    diagnostic.help = "check that it is a hostfile";
  }
  findings_.emplace_back(place, std::move(diagnostic));
}

void Collector::error(Place place, std::string message, std::string help) {
  report(place.file, {Diagnostic::kError, files_[place.file], place.line, place.column,
                      std::move(message), std::move(help)});
}

void Collector::warning(Place place, std::string message, std::string help) {
  report(place.file, {Diagnostic::kWarning, files_[place.file], place.line, place.column,
                      std::move(message), std::move(help)});
}

void Collector::host(Host host, Place place, Again again) {
  if (full_) return;
  if (named_.size() == kMaxHosts) {
    full_ = true;
    return error(place, fmt::format("more than {} hosts", kMaxHosts));
  }
  host.line = place.line;
  named_.push_back({std::move(host), place, again});
}

void Collector::exclude(std::string name, Place place) {
  if (full_) return;
  if (excluded_.size() == kMaxHosts) {
    full_ = true;
    return error(place, fmt::format("more than {} hosts to leave out", kMaxHosts));
  }
  excluded_.push_back({std::move(name), place});
}

void Collector::settle_duplicates() {
  // One line that says more than a name, and the file is no list of processes.
  const bool lines_are_processes = std::all_of(
      named_.begin(), named_.end(), [](const Named& n) { return n.again != Again::kIsAnError; });
  std::unordered_map<std::string, std::size_t> first;
  std::map<std::pair<Place, Place>, std::vector<std::string>> clashes;  // (again, first) → names
  std::vector<Named> kept;
  bool any_adds = false;
  for (Named& named : named_) {
    auto [known, is_new] = first.try_emplace(identity(named.host), kept.size());
    if (is_new) {
      kept.push_back(std::move(named));
      continue;
    }
    Named& before = kept[known->second];
    if (!lines_are_processes) {
      clashes[{named.place, before.place}].push_back(named.host.name);
      continue;
    }
    if (named.host.user != before.host.user) {
      error(named.place,
            fmt::format("host {} is named for two users, {} and {}; first at {}:{}",
                        in_quotes(named.host.name), in_quotes(before.host.user),
                        in_quotes(named.host.user), files_[before.place.file], before.place.line),
            "name it once");
      continue;
    }
    if (named.again == Again::kAddsASlot && before.again == Again::kAddsASlot) {
      ++before.times;
      any_adds = true;
    }
  }
  for (const auto& [places, names] : clashes) {
    const auto& [again, before] = places;
    std::string where = again.file == before.file
                            ? fmt::format("line {}", before.line)
                            : fmt::format("{}:{}", files_[before.file], before.line);
    error(again,
          fmt::format("{} {} already named at {}", fold_nodeset(names),
                      names.size() == 1 ? "is" : "are", where),
          fmt::format("remove one of the two; only in a file of bare names, one a process, do "
                      "repeated lines add slots"));
  }
  // In a file of processes a host that is there once has one slot, not an unknown number.
  for (Named& named : kept) {
    if (named.again == Again::kAddsASlot && (any_adds || named.host.slots > 0)) {
      named.host.slots = named.times;
    }
  }
  named_ = std::move(kept);
}

void Collector::settle_exclusions() {
  if (excluded_.empty()) return;
  std::unordered_map<std::string, bool> used;
  for (const Mention& mention : excluded_) used.emplace(canonical_name(mention.text), false);
  const bool had_hosts = !named_.empty();
  std::erase_if(named_, [&](const Named& named) {
    auto match = used.find(canonical_name(named.host.name));
    if (match == used.end()) return false;
    match->second = true;
    return true;
  });
  std::map<Place, std::vector<std::string>> unused;
  for (const Mention& mention : excluded_) {
    if (!used[canonical_name(mention.text)]) unused[mention.place].push_back(mention.text);
  }
  for (const auto& [place, names] : unused) {
    warning(place, fmt::format("{} to be left out, but named nowhere", fold_nodeset(names)),
            "check the spelling: a host that was meant is still in the list");
  }
  if (had_hosts && named_.empty() && errors_ == 0) {
    error(excluded_.front().place, "every host is left out");
  }
}

void Collector::finish(std::vector<Host>& hosts, std::vector<Diagnostic>& diagnostics) {
  settle_duplicates();
  settle_exclusions();
  // Stable: several findings of one place keep the order in which they were made.
  std::stable_sort(findings_.begin(), findings_.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& finding : findings_) diagnostics.push_back(std::move(finding.second));
  // Half a list is worse than none: who forgets to look at ok() must not install on it.
  if (errors_ > 0) return;
  hosts.reserve(named_.size());
  for (Named& named : named_) hosts.push_back(std::move(named.host));
}

}  // namespace dsi

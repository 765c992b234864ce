#include "orchestrator/history.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "orchestrator/base/file.h"
#include "orchestrator/text.h"

namespace dsi {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kMostRunsLookedAt = 100;

using Json = nlohmann::json;

// A key that is missing, null or of another type is as good as empty.
std::string text_at(const Json& row, const char* key) {
  auto at = row.find(key);
  return at != row.end() && at->is_string() ? at->get<std::string>() : std::string();
}

double number_at(const Json& row, const char* key) {
  auto at = row.find(key);
  return at != row.end() && at->is_number() ? at->get<double>() : 0.0;
}

// result_word() the other way round.
void set_result(HostReport& host, const std::string& word) {
  for (HostStatus status : {HostStatus::kInstalled, HostStatus::kUpToDate, HostStatus::kFailed,
                            HostStatus::kUnreachable, HostStatus::kRefused, HostStatus::kNotTried,
                            HostStatus::kBusy, HostStatus::kHeld}) {
    if (word != to_string(status)) continue;
    host.status = status;
    return;
  }
  host.status = HostStatus::kUpToDate;
  host.action = word;
}

HostReport parse_host(const Json& row) {
  HostReport host;
  host.host = text_at(row, "host");
  set_result(host, text_at(row, "result"));
  host.from = text_at(row, "from");
  host.to = text_at(row, "to");
  host.bytes_sent = static_cast<std::uint64_t>(std::max(number_at(row, "bytes_sent"), 0.0));
  host.seconds = std::chrono::duration<double>(number_at(row, "seconds"));
  if (auto error = row.find("error"); error != row.end() && error->is_object()) {
    host.error = {text_at(*error, "what"), text_at(*error, "help")};
  }
  host.prefix = text_at(row, "prefix");
  if (auto releases = row.find("releases"); releases != row.end() && releases->is_array()) {
    for (const Json& one : *releases) {
      if (one.is_string()) host.releases.push_back(one.get<std::string>());
    }
  }
  if (auto processes = row.find("processes"); processes != row.end() && processes->is_array()) {
    for (const Json& one : *processes) {
      host.processes.push_back({static_cast<int>(number_at(one, "pid")), text_at(one, "user"),
                                text_at(one, "command"), text_at(one, "release")});
    }
  }
  return host;
}

// What a host came to, without what the command was.
std::string state_of(const HostReport& host) {
  return is_done(host.status) ? "well" : to_string(host.status);
}

// The rows of the hosts in a report, without what follows them: the rows of their ops are ten times
// as many. Stops at a line that cannot be read.
void for_each_host(const fs::path& state, const std::string& run,
                   const std::function<void(const Json&)>& call) {
  std::ifstream file(state / "runs" / run / "report.jsonl");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("{\"type\":\"version\"")) continue;
    if (!line.starts_with("{\"type\":\"host\"")) return;
    const Json row = Json::parse(line, nullptr, false);
    if (!row.is_object()) return;
    call(row);
  }
}

std::string status_of(const HostReport& host, const std::string& op) {
  for (const protocol::OpRow& row : host.ops) {
    if (row.op == op) return row.status;
  }
  return "";
}

}  // namespace

Result<std::string> find_run(const fs::path& state, const std::string& wanted) {
  const std::vector<std::string> runs = list_runs(state);
  const std::string where = (state / "runs").string();
  if (runs.empty()) return fail("there is no record of any run in {}", where);
  if (wanted == "last") return runs.front();
  std::vector<std::string> found;
  for (const std::string& run : runs) {
    if (run == wanted) return run;
    if (run.starts_with(wanted)) found.push_back(run);
  }
  if (found.size() == 1) return found[0];
  if (found.empty()) {
    return fail_with_help(fmt::format("there is no record of a run {}", printable(wanted)),
                          "ds-install history lists the runs");
  }
  return fail_with_help(fmt::format("{} runs begin with {}: {} to {}", found.size(),
                                    printable(wanted), found.back(), found.front()),
                        "give more of the id");
}

Result<std::map<std::string, std::string>> releases_to_go_to(
    const fs::path& state, const std::string& to, const std::string& package,
    const std::vector<std::string>& hosts) {
  std::map<std::string, std::string> targets;
  const bool release =
      to.size() == 16 && to.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (release) {
    for (const std::string& host : hosts) targets[host] = to;
    return targets;
  }
  DSI_TRY(std::string run, find_run(state, to));
  DSI_TRY(RunReport report, read_report(state, run));
  if (report.package != package) {
    return fail_with_help(
        fmt::format("run {} was about {}", run,
                    report.package.empty() ? "the ops" : "the package " + report.package),
        "give the options that name what is to be rolled back");
  }
  const std::set<std::string> wanted(hosts.begin(), hosts.end());
  for (const HostReport& host : report.hosts) {
    if (is_done(host.status) && !host.to.empty() && wanted.contains(host.host)) {
      targets[host.host] = host.to;
    }
  }
  if (targets.empty()) {
    return fail_with_help(fmt::format("run {} left no release on any of these hosts", run),
                          "ds-install history show names the hosts of a run");
  }
  return targets;
}

std::map<std::string, std::set<std::string>> releases_on_hosts(const fs::path& state) {
  std::map<std::string, std::set<std::string>> on;
  std::set<std::string> seen;  // Host and where on it.
  std::size_t looked_at = 0;
  for (const std::string& id : list_runs(state)) {
    if (++looked_at > kMostRunsLookedAt) break;
    for_each_host(state, id, [&](const Json& row) {
      auto releases = row.find("releases");
      const bool uninstalled = text_at(row, "result") == "uninstalled";
      if (!uninstalled && (releases == row.end() || !releases->is_array())) return;
      const std::string host = text_at(row, "host");
      if (!seen.insert(host + '\n' + text_at(row, "prefix")).second || uninstalled) return;
      for (const Json& release : *releases) {
        if (release.is_string()) on[release.get<std::string>()].insert(host);
      }
    });
  }
  return on;
}

std::vector<std::string> list_runs(const fs::path& state) {
  std::vector<std::string> runs;
  std::error_code error;
  for (fs::directory_iterator at(state / "runs", error), end; !error && at != end;
       at.increment(error)) {
    runs.push_back(at->path().filename().string());
  }
  std::sort(runs.rbegin(), runs.rend());
  return runs;
}

Result<RunReport> parse_report(std::string_view text) {
  RunReport report;
  std::map<std::string, std::size_t> by_name;
  std::set<std::string> seen;
  std::size_t number = 0;
  bool ended_early = false;
  while (!text.empty()) {
    ++number;
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.empty()) continue;
    Json row = Json::parse(line, nullptr, false);
    if (!row.is_object()) return fail("line {} of the report is no JSON object", number);
    std::string type = text_at(row, "type");
    std::string name = text_at(row, "host");
    if (type == "host") {
      by_name.emplace(name, report.hosts.size());
      report.hosts.push_back(parse_host(row));
    } else if (type == "op") {
      auto host = by_name.find(name);
      if (host == by_name.end()) return fail("line {} of the report is of no host", number);
      std::string op = text_at(row, "op");
      report.hosts[host->second].ops.push_back(
          {op, text_at(row, "status"), text_at(row, "device"), text_at(row, "detail")});
      if (seen.insert(op).second) report.columns.push_back(op);
    } else if (type == "warning") {
      report.warnings.push_back(text_at(row, "text"));
    } else if (type == "error") {
      report.error = {text_at(row, "what"), text_at(row, "help")};
      ended_early = true;
    } else if (type == "remark") {
      report.remarks.push_back({name, text_at(row, "text")});
    } else if (type == "summary") {
      report.command = text_at(row, "command");
      report.run = text_at(row, "run");
      report.release = text_at(row, "release");
      report.package = text_at(row, "package");
      report.seconds = std::chrono::duration<double>(number_at(row, "seconds"));
      report.interrupted = number_at(row, "exit_code") == 130;
      if (ended_early) report.error_exit = static_cast<int>(number_at(row, "exit_code"));
      if (auto strict = row.find("strict"); strict != row.end() && strict->is_boolean()) {
        report.strict = strict->get<bool>();
      }
    }
  }
  if (report.command.empty()) return fail("the report has no summary");
  return report;
}

Result<RunReport> read_report(const fs::path& state, const std::string& run) {
  fs::path file = state / "runs" / run / "report.jsonl";
  DSI_TRY(std::string text, read_file(file));
  return parse_report(text).map_error(in("while reading {}", file.string()));
}

Result<RunSummary> read_summary(const fs::path& state, const std::string& run) {
  const fs::path file = state / "runs" / run / "report.jsonl";
  std::ifstream in_file(file, std::ios::binary);
  if (!in_file) return fail("cannot read {}", file.string());
  constexpr std::streamoff kTail = 64 * 1024;
  in_file.seekg(0, std::ios::end);
  const std::streamoff size = in_file.tellg();
  in_file.seekg(std::max<std::streamoff>(size - kTail, 0));
  std::string text(std::istreambuf_iterator<char>(in_file), {});
  while (text.ends_with('\n')) text.pop_back();
  const std::size_t line = text.rfind('\n');
  const Json row = Json::parse(text.substr(line == text.npos ? 0 : line + 1), nullptr, false);
  if (!row.is_object() || text_at(row, "type") != "summary") {
    return fail("{} has no summary at its end", file.string());
  }
  RunSummary summary;
  summary.command = text_at(row, "command");
  summary.release = text_at(row, "release");
  summary.package = text_at(row, "package");
  summary.exit_code = static_cast<int>(number_at(row, "exit_code"));
  summary.hosts = static_cast<std::size_t>(std::max(number_at(row, "hosts"), 0.0));
  summary.seconds = std::chrono::duration<double>(number_at(row, "seconds"));
  if (auto counts = row.find("counts"); counts != row.end() && counts->is_object()) {
    for (const auto& [word, count] : counts->items()) {
      if (count.is_number()) summary.counts[word] = count.get<int>();
    }
  }
  return summary;
}

std::map<std::string, std::string> releases_on_record(
    const fs::path& state, const std::string& package, const std::vector<std::string>& hosts,
    const std::map<std::string, std::string>& prefixes) {
  auto elsewhere = [&](const HostReport& host) {
    auto prefix = prefixes.find(host.host);
    // Records of older versions do not know the prefix.
    return prefix != prefixes.end() && !host.prefix.empty() && prefix->second != host.prefix;
  };
  std::set<std::string> open(hosts.begin(), hosts.end());
  std::map<std::string, std::string> releases;
  for (const std::string& id : list_runs(state)) {
    if (open.empty()) break;
    auto summary = read_summary(state, id);
    if (!summary || summary->package != package ||
        (summary->command != "install" && summary->command != "rollback" &&
         summary->command != "uninstall")) {
      continue;
    }
    for_each_host(state, id, [&](const Json& row) {
      const HostReport host = parse_host(row);
      if (elsewhere(host)) return;
      if (is_done(host.status) && open.erase(host.host) > 0) releases[host.host] = host.to;
    });
  }
  return releases;
}

void hold_against(const std::map<std::string, std::string>& wanted, RunReport& report) {
  auto name = [](const std::string& release) {
    return release.empty() ? std::string("no release") : "release " + release;
  };
  for (HostReport& host : report.hosts) {
    if (!is_done(host.status)) continue;
    auto release = wanted.find(host.host);
    if (release == wanted.end()) {
      host.status = HostStatus::kFailed;
      host.error = {
          fmt::format("it has {}, and no run on record says what it should have", name(host.to)),
          "say what it should have with --release ID"};
    } else if (release->second != host.to) {
      host.status = HostStatus::kFailed;
      host.error = {
          fmt::format("it has {}, and should have {}", name(host.to), name(release->second)),
          "ds-install with its hostfile brings it back; ds-install history tells of "
          "earlier runs"};
    }
  }
}

std::optional<RunReport> report_before(const fs::path& state, const std::string& run,
                                       const std::string& package,
                                       const std::vector<std::string>& hosts) {
  std::set<std::string> wanted(hosts.begin(), hosts.end());
  std::size_t looked_at = 0;
  for (const std::string& id : list_runs(state)) {
    if (id >= run) continue;
    if (++looked_at > kMostRunsLookedAt) break;
    auto report = read_report(state, id);
    if (!report || report->package != package) continue;
    for (const HostReport& host : report->hosts) {
      if (!host.ops.empty() && wanted.contains(host.host)) return *std::move(report);
    }
  }
  return std::nullopt;
}

std::vector<Change> changes_since(const RunReport& before, const RunReport& now) {
  std::map<std::string, const HostReport*> old;
  for (const HostReport& host : before.hosts) old.emplace(host.host, &host);
  std::vector<Change> changes;
  for (const HostReport& host : now.hosts) {
    auto found = old.find(host.host);
    if (found == old.end()) {
      changes.push_back({host.host, "result", "", result_word(now, host)});
      continue;
    }
    const HostReport& was = *found->second;
    if (state_of(was) != state_of(host)) {
      changes.push_back({host.host, "result", result_word(before, was), result_word(now, host)});
    }
    if (!is_done(was.status) || !is_done(host.status)) continue;
    if (was.to != host.to) changes.push_back({host.host, "release", was.to, host.to});
    std::set<std::string> ops;
    for (const HostReport* either : {&was, &host}) {
      for (const protocol::OpRow& row : either->ops) ops.insert(row.op);
    }
    for (const std::string& op : ops) {
      std::string a = status_of(was, op);
      std::string b = status_of(host, op);
      if (a != b) changes.push_back({host.host, op, std::move(a), std::move(b)});
    }
  }
  return changes;
}

std::string time_of_run(const std::string& run) {
  auto digits = [&](std::size_t from, std::size_t count) {
    return run.size() >= from + count &&
           std::all_of(run.begin() + static_cast<std::ptrdiff_t>(from),
                       run.begin() + static_cast<std::ptrdiff_t>(from + count),
                       [](char c) { return c >= '0' && c <= '9'; });
  };
  if (!digits(0, 8) || !digits(9, 6) || run[8] != '-') return run;
  return fmt::format("{}-{}-{} {}:{}:{} UTC", run.substr(0, 4), run.substr(4, 2), run.substr(6, 2),
                     run.substr(9, 2), run.substr(11, 2), run.substr(13, 2));
}

}  // namespace dsi

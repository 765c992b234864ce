#pragma once

// What earlier runs left in $XDG_STATE_HOME/ds-install/runs (record.h), read again.

#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "orchestrator/base/result.h"
#include "orchestrator/report.h"

namespace dsi {

// The run that is meant: an id, what only one id begins with, or "last". An error of usage.
Result<std::string> find_run(const std::filesystem::path& state, const std::string& wanted);

// What rollback --to means for each host: a release's id is the same for all; a run's is what that
// run left on each, and a host of which it left nothing is not in it.
Result<std::map<std::string, std::string>> releases_to_go_to(const std::filesystem::path& state,
                                                             const std::string& to,
                                                             const std::string& package,
                                                             const std::vector<std::string>& hosts);

// Release → hosts that still have it, as far as records tell: the newest run in which a host said
// what it has decides. Looks at no more than the last hundred records.
std::map<std::string, std::set<std::string>> releases_on_hosts(const std::filesystem::path& state);

// The ids of all runs with a record, the newest first: ids sort by time.
std::vector<std::string> list_runs(const std::filesystem::path& state);

// The report of one run as print_report_json wrote it. What is told of a host but not kept there
// (the plan, transcripts) stays empty.
Result<RunReport> read_report(const std::filesystem::path& state, const std::string& run);

// The same from the text of a report.jsonl. A line that is no JSON is an error; a key or a type
// that is not known is passed over.
Result<RunReport> parse_report(std::string_view text);

// The last line of a report, which counts.
struct RunSummary {
  std::string command;
  std::string release;
  std::string package;
  int exit_code = 0;
  std::size_t hosts = 0;
  std::map<std::string, int> counts;  // Result word → hosts.
  std::chrono::duration<double> seconds{0};
};
// Reads no more of the file than that line, so that a list of many runs of many hosts is quick.
Result<RunSummary> read_summary(const std::filesystem::path& state, const std::string& run);

// What each of `hosts` has, as far as records tell: the release that the newest run that changed it
// left there; empty if it was uninstalled. A host that no run changed is not in it. Only runs about
// `package` count; empty: about the ops. Of a host in `prefixes` only what was done in that prefix
// (HostReport::prefix) counts.
std::map<std::string, std::string> releases_on_record(
    const std::filesystem::path& state, const std::string& package,
    const std::vector<std::string>& hosts, const std::map<std::string, std::string>& prefixes = {});

// Hosts of `report` that have another release than `wanted` says become failed, with both named.
// One that `wanted` does not know becomes failed, too.
void hold_against(const std::map<std::string, std::string>& wanted, RunReport& report);

// The newest report before `run` in which one of `hosts` said something about its ops, among the
// last hundred records. Reports that cannot be read, or are not about `package`, are passed over.
std::optional<RunReport> report_before(const std::filesystem::path& state, const std::string& run,
                                       const std::string& package,
                                       const std::vector<std::string>& hosts);

// What a host came to in one run and not in another.
struct Change {
  std::string host;
  std::string what;    // An op, or "result" or "release".
  std::string before;  // A status, a word of result_word() or a release's id; empty: nothing was
  std::string after;   // known. The same.
};

// By host in the order of `now`, then by op. A host that one of the two does not name, or that one
// of the two runs did not reach, changes in its result only. Words for what a command did
// ("installed", "reported") are the same here: they say that the host is well.
std::vector<Change> changes_since(const RunReport& before, const RunReport& now);

// "2026-11-30 14:15:02 UTC" of "20261130-141502-3f9c"; the id itself if it is none.
std::string time_of_run(const std::string& run);

}  // namespace dsi

#include "orchestrator/history_command.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "orchestrator/base/file.h"
#include "orchestrator/history.h"
#include "orchestrator/report_html.h"
#include "orchestrator/text.h"

namespace dsi {

namespace fs = std::filesystem;

namespace {

std::string counts_of(const RunSummary& run) {
  std::string text = fmt::format("{} host{}", run.hosts, run.hosts == 1 ? "" : "s");
  std::string separator = ": ";
  for (const auto& [word, count] : run.counts) {
    if (count == 0) continue;
    text += fmt::format("{}{} {}", separator, count, printable(word));
    separator = ", ";
  }
  return text;
}

std::size_t still_on(const std::map<std::string, std::set<std::string>>& still,
                     const std::string& release) {
  auto at = still.find(release);
  return at == still.end() ? 0 : at->second.size();
}

void list(const fs::path& state, bool json, std::ostream& out) {
  std::size_t runs = 0;
  const auto still = releases_on_hosts(state);
  for (const std::string& id : list_runs(state)) {
    ++runs;
    Result<RunSummary> run = read_summary(state, id);
    if (json) {
      nlohmann::ordered_json row = {{"type", "run"}, {"run", id}, {"time", time_of_run(id)}};
      if (run) {
        row.update({{"command", run->command},
                    {"exit_code", run->exit_code},
                    {"hosts", run->hosts},
                    {"counts", run->counts},
                    {"release", run->release},
                    {"still_on", still_on(still, run->release)},
                    {"seconds", run->seconds.count()}});
      } else {
        row["error"] = run.error().what;
      }
      out << row.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
    } else if (run) {
      std::string text = fmt::format(
          "{}  {}  {} exit {:<3}  {:>8.1f} s  {}", printable(id),
          padded(printable(run->command), 9),
          run->release.empty() ? std::string(16, ' ') : padded(printable(run->release), 16),
          run->exit_code, run->seconds.count(), counts_of(*run));
      if (std::size_t hosts = still_on(still, run->release); hosts > 0) {
        text += fmt::format("; still on {}", hosts);
      }
      out << text << '\n';
    } else {
      out << fmt::format("{}  did not end, or its report cannot be read\n", printable(id));
    }
  }
  if (runs == 0 && !json)
    out << fmt::format("no run is on record in {}\n", (state / "runs").string());
}

}  // namespace

Result<void> show_history(const Options& options, const fs::path& state, std::ostream& out,
                          const Style& style) {
  if (options.record.empty()) {
    if (!options.html.empty()) {
      return fail_with_help("--html needs one run", "ds-install history show ID --html FILE");
    }
    list(state, options.json, out);
    return {};
  }
  DSI_TRY(std::string run, find_run(state, options.record));
  DSI_TRY(RunReport report, read_report(state, run));
  if (options.json) {
    print_report_json(out, report);
  } else {
    out << fmt::format("{} of {}, run {}{}\n\n", printable(report.command), time_of_run(run),
                       printable(run),
                       report.release.empty() ? "" : ", release " + printable(report.release));
    print_report(out, report, style);
    out << fmt::format("The plan and what each host said are in {}\n",
                       (state / "runs" / run).string());
  }
  if (options.html.empty()) return {};
  return write_page(options.html, report, state);
}

}  // namespace dsi

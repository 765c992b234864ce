#include "orchestrator/notify.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "orchestrator/base/nodeset.h"
#include "orchestrator/text.h"

namespace dsi {
namespace {

std::map<std::string, std::size_t> counts_of(const RunReport& report) {
  std::map<std::string, std::size_t> counts;
  for (const HostReport& host : report.hosts) ++counts[result_word(report, host)];
  return counts;
}

// One line of what somebody else said, cut short.
std::string short_line(const std::string& text) {
  constexpr std::size_t kMost = 200;
  std::string line = printable(text.substr(0, text.find('\n')));
  return line.size() <= kMost ? line : line.substr(0, kMost) + "...";
}

// "node[01-02] unreachable: connection refused"; hosts with the same reason together.
std::string reasons_of(const RunReport& report) {
  constexpr std::size_t kMostReasons = 5;
  std::map<std::tuple<std::string, std::string>, std::vector<std::string>> hosts;
  for (const HostReport& host : report.hosts) {
    if (!has_failed(host, report.strict)) continue;
    std::string what = with_name_as(host.error.what, host.host, "it");
    for (const protocol::OpRow& op : host.ops) {
      if (!is_done(host.status) || op.status == "ok") continue;
      what += fmt::format("{}{} is {}", what.empty() ? "" : ", ", op.op, op.status);
    }
    hosts[{result_word(report, host), short_line(what)}].push_back(host.host);
  }
  std::string text;
  std::size_t told = 0;
  for (const auto& [reason, names] : hosts) {
    if (++told > kMostReasons) {
      return text + fmt::format("; and {} more reasons", hosts.size() - kMostReasons);
    }
    const auto& [word, what] = reason;
    text += fmt::format("{}{} {}{}", text.empty() ? "" : "; ", fold_nodeset(names), word,
                        what.empty() ? "" : ": " + what);
  }
  return text;
}

}  // namespace

std::string paragraph_of(const Ending& ending) {
  const RunReport& report = ending.report;
  std::string text =
      fmt::format("ds-install {} of {} (run {}) ended with exit code {} after {:.0f} s",
                  report.command, ending.by, report.run, exit_code(report), report.seconds.count());
  if (report.interrupted) text += ", interrupted";
  text += '.';
  if (report.error_exit != 0) text += ' ' + short_line(report.error.what) + '.';
  if (!report.hosts.empty()) {
    text += fmt::format(" {} host{}", report.hosts.size(), report.hosts.size() == 1 ? "" : "s");
    std::string separator = ": ";
    for (const auto& [word, count] : counts_of(report)) {
      text += fmt::format("{}{} {}", separator, count, printable(word));
      separator = ", ";
    }
    text += '.';
  }
  if (const std::string reasons = reasons_of(report); !reasons.empty()) text += ' ' + reasons + '.';
  if (!report.release.empty()) text += fmt::format(" Release {}.", report.release);
  if (!ending.record.empty()) {
    text += fmt::format(" More: ds-install history show {}.", report.run);
  }
  return text;
}

std::string json_of(const Ending& ending) {
  const RunReport& report = ending.report;
  nlohmann::ordered_json body = {{"text", paragraph_of(ending)},
                                 {"run", report.run},
                                 {"command", report.command},
                                 {"exit_code", exit_code(report)},
                                 {"by", ending.by},
                                 {"release", report.release},
                                 {"package", report.package},
                                 {"hosts", report.hosts.size()},
                                 {"counts", counts_of(report)}};
  body["not_well"] = nlohmann::ordered_json::array();
  for (const HostReport& host : report.hosts) {
    if (has_failed(host, report.strict)) body["not_well"].push_back(host.host);
  }
  body["seconds"] = report.seconds.count();
  body["record"] = ending.record.string();
  return body.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string without_secrets(std::string_view url) {
  const std::size_t scheme = url.find("://");
  if (scheme == url.npos) return "...";
  const std::size_t begin = scheme + 3;
  const std::size_t end = std::min(url.find_first_of("/?#", begin), url.size());
  std::string_view host = url.substr(begin, end - begin);
  const std::size_t at = host.rfind('@');
  if (at != host.npos) host.remove_prefix(at + 1);
  return std::string(url.substr(0, begin)) + std::string(host) + (end < url.size() ? "/..." : "");
}

std::vector<std::string> notify(const Options& options, const Ending& ending,
                                ProcessRunner& processes, Webhook& webhook) {
  std::vector<std::string> warnings;
  if (!options.notify.empty()) {
    // Without a stop token: an interrupted run is told of, too.
    auto ended = processes.run({{"/bin/sh", "-c", options.notify},
                                {},
                                {{"DSI_RUN_ID", ending.report.run},
                                 {"DSI_COMMAND", ending.report.command},
                                 {"DSI_EXIT", std::to_string(exit_code(ending.report))},
                                 {"DSI_RECORD", ending.record.string()}},
                                paragraph_of(ending) + "\n"},
                               Deadline::after(options.notify_timeout), {});
    if (!ended) {
      // Not the error's text: that quotes the command, which may hold a secret.
      warnings.push_back(fmt::format("the command of --notify did not end within {} s",
                                     options.notify_timeout.count()));
    } else if (!ended->ok()) {
      std::string said = ended->err.empty() ? ended->out : ended->err;
      warnings.push_back(fmt::format("the command of --notify ended with {}{}",
                                     ended->signal != 0
                                         ? fmt::format("signal {}", ended->signal)
                                         : fmt::format("exit code {}", ended->exit_code),
                                     said.empty() ? "" : ": " + short_line(said)));
    }
  }
  if (!options.notify_url.empty()) {
    auto sent = webhook.post(options.notify_url, json_of(ending), options.notify_timeout);
    if (!sent) {
      warnings.push_back(fmt::format("the webhook {} was not told: {}",
                                     without_secrets(options.notify_url), sent.error().what));
    }
  }
  return warnings;
}

}  // namespace dsi

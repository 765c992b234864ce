#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "orchestrator/report.h"

namespace dsi {
namespace {

using Json = nlohmann::ordered_json;  // Keys in the order a reader expects: "type" first.

void print_line(std::ostream& out, const Json& row) {
  // Replaced, not refused: an error may quote any byte that a node sent.
  out << row.dump(-1, ' ', false, Json::error_handler_t::replace) << '\n';
}

Json text_or_null(const std::string& text) {
  return text.empty() ? Json(nullptr) : Json(text);
}

// Milliseconds are what a clock across a network can mean.
double rounded(std::chrono::duration<double> time) {
  return std::round(time.count() * 1000.0) / 1000.0;
}

}  // namespace

void print_report_json(std::ostream& out, const RunReport& report) {
  print_line(out, {{"type", "version"}, {"version", 1}, {"ds_install", DSI_VERSION}});

  std::uint64_t bytes_sent = 0;
  Json counts = Json::object();
  if (report.command == "install") counts = {{"installed", 0}, {"up-to-date", 0}};
  for (const char* word : {"failed", "unreachable", "refused"}) counts[word] = 0;
  for (const HostReport& host : report.hosts) {
    const std::string result = result_word(report, host);
    counts[result] = counts.value(result, 0) + 1;
    bytes_sent += host.bytes_sent;
    Json row = {{"type", "host"},
                {"host", host.host},
                {"result", result},
                {"from", text_or_null(host.from)},
                {"to", text_or_null(host.to)},
                {"bytes_sent", host.bytes_sent},
                {"seconds", rounded(host.seconds)}};
    if (!host.error.what.empty() || !host.error.help.empty()) {
      row["error"] = {{"what", host.error.what}, {"help", host.error.help}};
    }
    if (!host.prefix.empty()) row["prefix"] = host.prefix;
    if (!host.releases.empty()) row["releases"] = host.releases;
    if (!host.processes.empty()) row["processes"] = nlohmann::json(host.processes);
    print_line(out, row);
  }
  for (const HostReport& host : report.hosts) {
    for (const protocol::OpRow& op : host.ops) {
      print_line(out, {{"type", "op"},
                       {"host", host.host},
                       {"op", op.op},
                       {"status", op.status},
                       {"device", op.device},
                       {"detail", op.detail}});
    }
  }
  for (const HostRemark& remark : report.remarks) {
    print_line(out, {{"type", "remark"}, {"host", remark.host}, {"text", remark.text}});
  }
  for (const std::string& warning : report.warnings) {
    print_line(out, {{"type", "warning"}, {"text", warning}});
  }
  if (report.error_exit != 0) {
    print_line(out, {{"type", "error"}, {"what", report.error.what}, {"help", report.error.help}});
  }
  nlohmann::ordered_json summary = {{"type", "summary"},
                                    {"command", report.command},
                                    {"exit_code", exit_code(report)},
                                    {"strict", report.strict},
                                    {"hosts", report.hosts.size()},
                                    {"counts", counts},
                                    {"head_bytes_sent", bytes_sent},
                                    {"seconds", rounded(report.seconds)},
                                    {"run", report.run},
                                    {"release", text_or_null(report.release)}};
  if (!report.package.empty()) summary["package"] = report.package;
  print_line(out, summary);
}

}  // namespace dsi

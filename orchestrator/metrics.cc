#include "orchestrator/metrics.h"

#include <map>

#include "orchestrator/text.h"

namespace dsi {
namespace {

// A label's value: valid UTF-8 without what would end it.
std::string label_value(std::string_view text) {
  std::string out = "\"";
  for (char c : printable(text)) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

std::string head(std::string_view name, std::string_view help) {
  return fmt::format("# HELP {0} {1}\n# TYPE {0} gauge\n", name, help);
}

}  // namespace

std::string metrics_text(const RunReport& report, std::int64_t end) {
  const std::string command = label_value(report.command);
  std::map<std::string, int> counts;
  for (const HostReport& host : report.hosts) ++counts[result_word(report, host)];

  std::string text = head("ds_install_hosts", "Hosts of the last run by what they came to.");
  for (const auto& [word, count] : counts) {
    text += fmt::format("ds_install_hosts{{command={},result={}}} {}\n", command, label_value(word),
                        count);
  }
  text += head("ds_install_host_well", "Whether the host has what it should have.");
  for (const HostReport& host : report.hosts) {
    text += fmt::format("ds_install_host_well{{host={},release={}}} {}\n", label_value(host.host),
                        label_value(host.to), has_failed(host, report.strict) ? 0 : 1);
  }
  text += head("ds_install_op_ok", "Whether the op's self-test gave the right numbers.");
  for (const HostReport& host : report.hosts) {
    for (const protocol::OpRow& op : host.ops) {
      text +=
          fmt::format("ds_install_op_ok{{host={},op={},device={}}} {}\n", label_value(host.host),
                      label_value(op.op), label_value(op.device), op.status == "ok" ? 1 : 0);
    }
  }
  text += head("ds_install_run_exit_code", "Exit code of the last run.");
  text += fmt::format("ds_install_run_exit_code{{command={},run={}}} {}\n", command,
                      label_value(report.run), exit_code(report));
  text += head("ds_install_run_seconds", "How long the last run took.");
  text +=
      fmt::format("ds_install_run_seconds{{command={}}} {:.3f}\n", command, report.seconds.count());
  text += head("ds_install_run_end_timestamp_seconds", "When the last run ended.");
  text += fmt::format("ds_install_run_end_timestamp_seconds{{command={}}} {}\n", command, end);
  return text;
}

}  // namespace dsi

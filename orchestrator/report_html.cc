#include "orchestrator/report_html.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "orchestrator/base/file.h"
#include "orchestrator/history.h"
#include "orchestrator/report_page.h"

namespace dsi {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kPlace = "@REPORT@";

std::vector<std::string> ops_of(const RunReport& report) {
  std::vector<std::string> ops = report.columns;
  std::set<std::string> known(ops.begin(), ops.end());
  for (const HostReport& host : report.hosts) {
    for (const protocol::OpRow& row : host.ops) {
      if (known.insert(row.op).second) ops.push_back(row.op);
    }
  }
  return ops;
}

// A cluster's cells are a few kinds many times over: each kind is written once.
class Cells {
 public:
  int number_of(const protocol::OpRow& row) {
    auto [at, is_new] =
        numbers_.emplace(std::tuple(row.status, row.device, row.detail), kinds_.size());
    if (is_new) kinds_.push_back(Json::array({row.status, row.device, row.detail}));
    return static_cast<int>(at->second);
  }
  Json take() { return std::move(kinds_); }

 private:
  Json kinds_ = Json::array();
  std::map<std::tuple<std::string, std::string, std::string>, std::size_t> numbers_;
};

Json data_of(const RunReport& report, const RunReport* before) {
  const std::vector<std::string> ops = ops_of(report);
  std::map<std::string, std::size_t> column;
  for (std::size_t i = 0; i < ops.size(); ++i) column.emplace(ops[i], i);
  std::map<std::string, Json> was;  // By host.
  if (before != nullptr) {
    for (const Change& change : changes_since(*before, report)) {
      was[change.host][change.what] = Json::array({change.before, change.after});
    }
  }
  Cells cells;
  Json hosts = Json::array();
  for (const HostReport& host : report.hosts) {
    std::vector<int> row(ops.size(), -1);
    for (const protocol::OpRow& op : host.ops) row[column.at(op.op)] = cells.number_of(op);
    Json entry = {{"name", host.host},
                  {"result", result_word(report, host)},
                  {"well", is_done(host.status)},
                  {"from", host.from},
                  {"to", host.to},
                  {"cells", std::move(row)}};
    if (!host.error.what.empty()) entry["error"] = {host.error.what, host.error.help};
    if (auto changed = was.find(host.host); changed != was.end()) entry["was"] = changed->second;
    hosts.push_back(std::move(entry));
  }
  Json remarks = Json::array();
  for (const HostRemark& remark : report.remarks) {
    remarks.push_back(Json::array({remark.host, remark.text}));
  }
  Json data = {{"command", report.command},
               {"run", report.run},
               {"time", time_of_run(report.run)},
               {"release", report.release},
               {"version", DSI_VERSION},
               {"seconds", report.seconds.count()},
               {"exit", exit_code(report)},
               {"interrupted", report.interrupted},
               {"previous", nullptr},
               {"ops", ops},
               {"cells", cells.take()},
               {"hosts", std::move(hosts)},
               {"remarks", std::move(remarks)}};
  if (before != nullptr) {
    data["previous"] = {{"run", before->run}, {"time", time_of_run(before->run)}};
  }
  return data;
}

// JSON that cannot end the script element it stands in: no "<" of a text is left as it is.
std::string safe_in_script(const Json& data) {
  std::string text = data.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string safe;
  safe.reserve(text.size());
  for (char c : text) {
    if (c == '<') {
      safe += "\\u003c";
    } else {
      safe += c;
    }
  }
  return safe;
}

}  // namespace

std::string report_html(const RunReport& report, const RunReport* before) {
  std::string page(kReportPage);
  page.replace(page.find(kPlace), kPlace.size(), safe_in_script(data_of(report, before)));
  return page;
}

Result<void> write_page(const std::filesystem::path& file, const RunReport& report,
                        const std::filesystem::path& state) {
  std::vector<std::string> names;
  for (const HostReport& host : report.hosts) names.push_back(host.host);
  std::optional<RunReport> before = report_before(state, report.run, report.package, names);
  return write_file_atomically(file, report_html(report, before ? &*before : nullptr));
}

}  // namespace dsi

#include "tests/net/cluster.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace dsi {

namespace fs = std::filesystem;
using nlohmann::json;
using namespace std::chrono_literals;

namespace {

constexpr int kSkipped = 77;

// The first run on a machine compiles every op.
constexpr auto kLongest = 15min;

Outcome run(const Command& command) {
  LocalProcessRunner processes;
  auto result = processes.run(command, Deadline::after(kLongest), {});
  if (!result) return {-1, "", result.error().what};
  return {result->exit_code, result->out, result->err};
}

const json& find_row(const std::vector<json>& rows, const json& wanted) {
  static const json kNothing = json::object();
  for (const json& row : rows) {
    bool fits = true;
    for (const auto& [key, value] : wanted.items()) fits = fits && row.value(key, json()) == value;
    if (fits) return row;
  }
  ADD_FAILURE() << "no row " << wanted;
  return kNothing;
}

}  // namespace

const json& JsonReport::summary() const {
  return find_row(rows, {{"type", "summary"}});
}

const json& JsonReport::host(const std::string& name) const {
  return find_row(rows, {{"type", "host"}, {"host", name}});
}

const json& JsonReport::op(const std::string& host, const std::string& op) const {
  return find_row(rows, {{"type", "op"}, {"host", host}, {"op", op}});
}

int JsonReport::count(const std::string& result) const {
  int n = 0;
  for (const json& row : rows)
    n += row.value("type", "") == "host" && row.value("result", "") == result;
  return n;
}

bool JsonReport::every_op_is_ok() const {
  int ops = 0;
  for (const json& row : rows) {
    if (row.value("type", "") != "op") continue;
    ++ops;
    if (row.value("status", "") != "ok") return false;
  }
  return ops > 0;
}

Cluster::Cluster(int hosts) : name_("test" + std::to_string(::getpid())), program_(DSI_PROGRAM) {
  folder_ = std::string(DSI_TEST_FOLDER) + "/" + name_;
  fs::create_directories(folder_);
  Outcome up = control({"up", std::to_string(hosts), "--mode", "namespaces"});
  if (up.exit_code == 0) return;
  // Not allowed here is a reason to skip; a cluster that is broken is a failure.
  if (up.exit_code == kSkipped || ::geteuid() != 0) {
    why_not_ =
        "hosts of their own need namespaces, and this machine does not allow them: " + up.err;
  } else {
    why_not_ = "the cluster does not come up";
    ADD_FAILURE() << up.err;
  }
}

Cluster::~Cluster() {
  control({"down"});
  if (!::testing::Test::HasFailure()) {
    std::error_code error;
    fs::remove_all(folder_, error);
  }
}

Outcome Cluster::control(const std::vector<std::string>& arguments) {
  Command command;
  command.argv = {std::string(DSI_SOURCE_FOLDER) + "/scripts/cluster", "--name", name_};
  command.argv.insert(command.argv.end(), arguments.begin(), arguments.end());
  command.environment = {{"XDG_CACHE_HOME", std::string(DSI_TEST_FOLDER) + "/cache"},
                         {"XDG_STATE_HOME", folder_ + "/state"}};
  command.folder = folder_;
  return run(command);
}

Outcome Cluster::on_head(const std::vector<std::string>& command) {
  std::vector<std::string> arguments = {"exec"};
  arguments.insert(arguments.end(), command.begin(), command.end());
  return control(arguments);
}

Outcome Cluster::on_node(int node, const std::string& script) {
  return control({"node", std::to_string(node), "sh", "-c", script});
}

std::string Cluster::write_hostfile(const std::string& text) {
  std::string path = folder_ + "/hostfile" + std::to_string(++files_);
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

std::string Cluster::default_hostfile() {
  return write_hostfile(control({"hostfile"}).out);
}

std::vector<std::string> Cluster::ds_install_command(std::vector<std::string> arguments) {
  bool says_which = false;
  for (const std::string& argument : arguments) {
    says_which = says_which || argument == "-H" || argument == "--hosts" || argument == "-l" ||
                 argument == "--partition";
  }
  std::vector<std::string> command = {program_};
  command.insert(command.end(), arguments.begin(), arguments.end());
  command.push_back("-r");
  if (!says_which) command.insert(command.end(), {"-H", default_hostfile()});
  return command;
}

Outcome Cluster::ds_install(std::vector<std::string> arguments) {
  return on_head(ds_install_command(std::move(arguments)));
}

JsonReport Cluster::ds_install_json(std::vector<std::string> arguments) {
  arguments.push_back("--json");
  return read_json_report(ds_install(std::move(arguments)));
}

JsonReport read_json_report(const Outcome& result) {
  JsonReport report{result.exit_code, result.err, {}};
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) {
    json row = json::parse(line, nullptr, false);
    if (row.is_discarded()) {
      ADD_FAILURE() << "not JSON: " << line;
    } else {
      report.rows.push_back(std::move(row));
    }
  }
  return report;
}

}  // namespace dsi

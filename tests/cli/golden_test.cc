// What people read, compared with tests/cli/golden/*.txt. After a wanted change run this program
// with DSI_UPDATE_GOLDEN=1 from the root of the sources, and look at what git says has changed.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "orchestrator/adapters/local_process.h"
#include "orchestrator/cli_help.h"
#include "orchestrator/options.h"
#include "orchestrator/report.h"
#include "orchestrator/text.h"
#include "tests/unit/temp_folder.h"

namespace dsi {
namespace {

void expect_golden(const std::string& name, const std::string& text) {
  const std::filesystem::path path = "tests/cli/golden/" + name + ".txt";
  if (std::getenv("DSI_UPDATE_GOLDEN")) {
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
    return;
  }
  std::ifstream file(path);
  ASSERT_TRUE(file) << path << " is missing; run with DSI_UPDATE_GOLDEN=1";
  std::stringstream wanted;
  wanted << file.rdbuf();
  EXPECT_EQ(text, wanted.str()) << "if this is wanted, run with DSI_UPDATE_GOLDEN=1";
}

std::size_t widest_line(const std::string& text) {
  std::istringstream lines(text);
  std::size_t widest = 0;
  for (std::string line; std::getline(lines, line);) widest = std::max(widest, display_width(line));
  return widest;
}

protocol::OpRow ok(const std::string& op) {
  return {op, "ok", "cpu", ""};
}

HostReport host(const std::string& name, HostStatus status, std::vector<protocol::OpRow> ops = {}) {
  HostReport report;
  report.host = name;
  report.status = status;
  report.ops = std::move(ops);
  const bool done = status == HostStatus::kInstalled || status == HostStatus::kUpToDate;
  report.to = done ? "5a2ca6a8b0b2c3d4" : "";
  return report;
}

HostReport failing(const std::string& name, HostStatus status, Error error) {
  HostReport report = host(name, status);
  report.error = std::move(error);
  return report;
}

RunReport run(std::vector<std::string> columns, std::vector<HostReport> hosts) {
  RunReport report;
  report.run = "20240501-120000-1a2b";
  report.command = "install";
  report.release = "5a2ca6a8b0b2c3d4";
  report.columns = std::move(columns);
  report.hosts = std::move(hosts);
  report.seconds = std::chrono::milliseconds(3210);
  return report;
}

const std::vector<std::string> kThree = {"cpu_adagrad", "cpu_adam", "cpu_lion"};
const std::vector<protocol::OpRow> kAllOk = {ok("cpu_adagrad"), ok("cpu_adam"), ok("cpu_lion")};

std::string printed(const RunReport& report, const Style& style = {}) {
  std::ostringstream out;
  print_report(out, report, style);
  return out.str();
}

std::string numbered(const char* format, int number) {
  char text[32];
  std::snprintf(text, sizeof text, format, number);
  return text;
}

TEST(Golden, Help) {
  EXPECT_LE(widest_line(help_text()), 100u);
  expect_golden("help", help_text());
}

TEST(Golden, Manual_page) {
  expect_golden("ds-install.1", man_page());
}

// groff says on standard error what it does not understand; the page has every option.
TEST(ManualPage, Is_good_roff_and_has_every_option) {
  TempFolder folder;
  const auto page = folder.write("ds-install.1", man_page());
  LocalProcessRunner processes;
  auto formatted =
      processes.run({{"groff", "-man", "-ww", "-Tutf8", "-P-cbou", page.string()}, {}, {}},
                    Deadline::after(std::chrono::seconds(50)), {});
  ASSERT_TRUE(formatted) << formatted.error().what;
  EXPECT_EQ(formatted->err, "");
  for (const OptionSpec& option : option_table()) {
    EXPECT_NE(formatted->out.find(dashed(option)), std::string::npos) << dashed(option);
  }
}

TEST(Golden, Help_of_each_command) {
  for (const CommandSpec& command : command_table()) {
    EXPECT_LE(widest_line(help_text(command)), 100u);
    expect_golden("help-" + std::string(command.name), help_text(command));
  }
}

TEST(Golden, Report_of_one_host) {
  RunReport report = run(kThree, {host("node01", HostStatus::kInstalled, kAllOk)});
  expect_golden("report-one-host", printed(report));
}

TEST(Golden, Report_of_eight_hosts_with_four_that_fail_each_in_its_own_way) {
  std::vector<HostReport> hosts;
  for (int i = 1; i <= 8; ++i) {
    hosts.push_back(host(numbered("node%02d", i), HostStatus::kInstalled, kAllOk));
  }
  hosts[1] = failing("node02", HostStatus::kUnreachable,
                     {"cannot connect to node02 port 22: No route to host",
                      "check that it is switched on, or take it out of the hostfile"});
  hosts[3] = failing("node04", HostStatus::kFailed,
                     {"while staging: cannot write /opt/ds-ops/store: No space left on device",
                      "free 1.4 MiB below /opt/ds-ops on node04; the old release still runs"});
  hosts[3].from = hosts[3].to = "00c0ffee00c0ffee";
  hosts[4] = failing("node05", HostStatus::kUnreachable,
                     {"connected to node05 port 22, but it said nothing for 10 s", ""});
  hosts[6] = failing("node07", HostStatus::kUnreachable,
                     {"the host key of node07 has changed",
                      "if that is right, say ssh-keygen -R node07 and connect once by hand"});
  expect_golden("report-eight-hosts", printed(run(kThree, hosts)));
}

TEST(Golden, Report_of_a_thousand_hosts_of_which_three_fail) {
  std::vector<HostReport> hosts;
  for (int i = 1; i <= 1000; ++i) {
    const std::string name = numbered("node%04d", i);
    if (i == 123 || i == 500) {
      hosts.push_back(failing(name, HostStatus::kUnreachable,
                              {"cannot connect to " + name + " port 22: Connection refused",
                               "check that sshd runs on " + name}));
    } else if (i == 878) {
      hosts.push_back(host(name, HostStatus::kInstalled,
                           {ok("cpu_adagrad"),
                            {"cpu_adam", "crash", "cpu", "killed by SIGILL during the self-test"},
                            ok("cpu_lion")}));
    } else {
      hosts.push_back(host(name, HostStatus::kInstalled, kAllOk));
    }
  }
  expect_golden("report-thousand-hosts", printed(run(kThree, hosts)));
}

std::vector<std::string> many_ops() {
  return {"async_io",
          "cpu_adagrad",
          "cpu_adam",
          "cpu_lion",
          "cutlass_ops",
          "dc",
          "evoformer_attn",
          "fp_quantizer",
          "fused_adam",
          "fused_lamb",
          "fused_lion",
          "gds",
          "pin_memory",
          "quantizer",
          "ragged_device_ops",
          "ragged_ops",
          "random_ltd",
          "shm_comm",
          "sparse_attn",
          "spatial_inference",
          "stochastic_transformer",
          "transformer",
          "transformer_inference",
          "utils"};
}

TEST(Golden, Report_of_many_ops_on_two_kinds_of_hosts) {
  std::vector<HostReport> hosts;
  for (int i = 1; i <= 64; ++i) {
    std::vector<protocol::OpRow> rows;
    for (const std::string& op : many_ops()) {
      rows.push_back(ok(op));
      if (op == "async_io" && i > 60) {
        rows.back() = {op, "missing", "cpu", "libaio.so.1: cannot open shared object file"};
      } else if (op == "gds") {
        rows.back() = {op, "not-built", "", "cufile.h was not found"};
      } else if (op == "fp_quantizer") {
        rows.back() = {op, "incompatible", "cuda", "needs sm_80 or newer, this host has sm_70"};
      }
    }
    hosts.push_back(host(numbered("gpu%03d", i), HostStatus::kInstalled, rows));
  }
  const RunReport report = run(many_ops(), hosts);
  EXPECT_LE(widest_line(printed(report).substr(0, printed(report).find("\n\n"))), 80u);
  expect_golden("report-many-ops", printed(report));
  expect_golden("report-many-ops-wide", printed(report, Style{false, false, 400}));
}

TEST(Golden, Report_of_many_ops_and_many_kinds_of_hosts_breaks_into_panes) {
  std::vector<HostReport> hosts;
  for (int i = 1; i <= 12; ++i) {
    std::vector<protocol::OpRow> rows;
    for (const std::string& op : many_ops()) rows.push_back(ok(op));
    rows[static_cast<std::size_t>(i)].status = "wrong";
    rows[static_cast<std::size_t>(i)].detail = "largest difference 0.5 where 1e-6 is allowed";
    hosts.push_back(host(numbered("n%d", i), HostStatus::kInstalled, rows));
  }
  expect_golden("report-panes", printed(run(many_ops(), hosts)));
}

TEST(Golden, Report_of_what_is_there_names_the_releases_and_the_damage) {
  RunReport report = run(kThree, {});
  report.command = "report";
  report.release.clear();
  for (int i = 1; i <= 4; ++i) {
    report.hosts.push_back(host(numbered("node%02d", i), HostStatus::kUpToDate, kAllOk));
    report.hosts.back().action = "reported";
  }
  report.hosts[2].to = "00c0ffee00c0ffee";
  for (int op : {0, 2}) {
    report.hosts[3].ops[static_cast<std::size_t>(op)].status = "damaged";
    report.hosts[3].ops[static_cast<std::size_t>(op)].detail =
        "the file is empty, it should have 41,984 bytes";
  }
  expect_golden("report-damage", printed(report));
  report.strict = true;
  expect_golden("report-damage-strict", printed(report, Style{false, true, 80}));
}

TEST(Golden, Report_of_an_interrupted_run) {
  RunReport report =
      run(kThree, {host("node01", HostStatus::kInstalled, kAllOk),
                   host("node02", HostStatus::kNotTried), host("node03", HostStatus::kNotTried)});
  report.interrupted = true;
  report.seconds = std::chrono::seconds(75);
  expect_golden("report-interrupted", printed(report));
}

}  // namespace
}  // namespace dsi

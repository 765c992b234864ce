#include "orchestrator/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "orchestrator/text.h"

namespace dsi {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

HostReport host(const std::string& name, HostStatus status,
                std::vector<protocol::OpRow> ops = {{"a", "ok", "cpu", ""}}) {
  HostReport report;
  report.host = name;
  report.status = status;
  report.ops = std::move(ops);
  return report;
}

RunReport run(std::vector<HostReport> hosts) {
  RunReport report;
  report.command = "install";
  report.columns = {"a"};
  report.hosts = std::move(hosts);
  return report;
}

std::string printed(const RunReport& report, const Style& style = {}) {
  std::ostringstream out;
  print_report(out, report, style);
  return out.str();
}

std::vector<nlohmann::json> rows(const RunReport& report) {
  std::ostringstream out;
  print_report_json(out, report);
  std::vector<nlohmann::json> parsed;
  std::istringstream lines(out.str());
  for (std::string line; std::getline(lines, line);) parsed.push_back(nlohmann::json::parse(line));
  return parsed;
}

TEST(ExitCode, Says_how_the_hosts_fared) {
  using S = HostStatus;
  EXPECT_EQ(exit_code(run({})), 0);
  EXPECT_EQ(exit_code(run({host("x", S::kInstalled), host("y", S::kUpToDate)})), 0);
  EXPECT_EQ(exit_code(run({host("x", S::kInstalled), host("y", S::kFailed)})), 1);
  EXPECT_EQ(exit_code(run({host("x", S::kInstalled), host("y", S::kUnreachable)})), 1);
  EXPECT_EQ(exit_code(run({host("x", S::kInstalled), host("y", S::kRefused)})), 1);
  EXPECT_EQ(exit_code(run({host("x", S::kUnreachable), host("y", S::kRefused)})), 1);
  EXPECT_EQ(exit_code(run({host("x", S::kRefused), host("y", S::kRefused)})), 4);
  EXPECT_EQ(exit_code(run({host("x", S::kNotTried)})), 1);
  RunReport interrupted = run({host("x", S::kInstalled), host("y", S::kFailed)});
  interrupted.interrupted = true;
  EXPECT_EQ(exit_code(interrupted), 130);
}

TEST(ExitCode, Strict_wants_every_op_ok) {
  for (const char* status :
       {"wrong", "crash", "missing", "incompatible", "damaged", "skipped", "not-built"}) {
    RunReport report = run({host("x", HostStatus::kInstalled, {{"a", status, "", ""}})});
    EXPECT_EQ(exit_code(report), 0);
    report.strict = true;
    EXPECT_EQ(exit_code(report), 1) << status;
  }
  RunReport silent = run({host("x", HostStatus::kInstalled, {})});
  silent.strict = true;
  EXPECT_EQ(exit_code(silent), 1);
  silent.columns.clear();
  EXPECT_EQ(exit_code(silent), 0);
}

TEST(Report, A_repaired_host_is_installed_and_other_commands_use_the_agents_word) {
  HostReport h = host("x", HostStatus::kInstalled);
  h.action = "repaired";
  RunReport report = run({h});
  EXPECT_EQ(result_word(report, h), "installed");
  report.command = "rollback";
  h.action = "rolled-back";
  EXPECT_EQ(result_word(report, h), "rolled-back");
  h.status = HostStatus::kUnreachable;
  EXPECT_EQ(result_word(report, h), "unreachable");
}

TEST(Report, The_same_reason_on_many_hosts_is_told_once) {
  std::vector<HostReport> hosts;
  for (const char* name : {"n1", "n2", "n3"}) {
    hosts.push_back(host(name, HostStatus::kUnreachable, {}));
    hosts.back().error = {std::string("no answer from ") + name + ".", std::string("ping ") + name};
  }
  const std::string text = printed(run(hosts));
  EXPECT_THAT(text, HasSubstr("error: n[1-3] (3 hosts): unreachable: no answer from <host>.\n"
                              "  help: ping <host>\n"));
  hosts[1].error.what = "no answer from n1 either";
  EXPECT_THAT(printed(run(hosts)), HasSubstr("error: n2: unreachable: no answer from n1 either\n"));
}

TEST(Report, A_name_inside_another_name_is_left_alone) {
  std::vector<HostReport> hosts = {host("n1", HostStatus::kFailed, {}),
                                   host("n2", HostStatus::kFailed, {})};
  hosts[0].error.what = "n1.example n10 an1 n1";
  hosts[1].error.what = "n1.example n10 an1 n2";
  EXPECT_THAT(printed(run(hosts)),
              HasSubstr("n[1-2] (2 hosts): failed: n1.example n10 an1 <host>"));
}

TEST(Report, What_a_node_says_cannot_steer_the_terminal) {
  HostReport bad = host("x", HostStatus::kFailed,
                        {{"a\x1b[2J", "crash\x07", "cpu\r", "\x1b]0;title\x07 \xff\xfe\nline"}});
  bad.error = {"\x1b[31mred\x9b\n\xC2\x9b[31m", "\x1b[0m"};
  bad.to = "\x1b[1m";
  const std::string text = printed(run({bad}));
  for (char c : text) EXPECT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= 0x20);
  EXPECT_THAT(text, AllOf(Not(HasSubstr("\x7f")), Not(HasSubstr("\xC2\x9b"))));
}

TEST(Report, Is_coloured_only_if_asked) {
  const RunReport report = run({host("x", HostStatus::kInstalled), host("y", HostStatus::kFailed)});
  EXPECT_THAT(printed(report), Not(HasSubstr("\x1b")));
  EXPECT_THAT(printed(report, Style{false, true, 80}), HasSubstr("\x1b[32mok\x1b[0m"));
}

TEST(Report, No_line_of_the_matrix_is_wider_than_the_terminal_or_ends_in_spaces) {
  std::vector<HostReport> hosts;
  std::vector<std::string> columns;
  for (int c = 0; c < 30; ++c) columns.push_back("some_long_operation_" + std::to_string(c));
  for (int i = 0; i < 40; ++i) {
    std::vector<protocol::OpRow> ops;
    for (int c = 0; c < 30; ++c) {
      ops.push_back(
          {columns[static_cast<std::size_t>(c)], (i + c) % 7 == 0 ? "incompatible" : "ok", "", ""});
    }
    const std::string name =
        "a-host-with-a-long-name-" + std::to_string(i * 3) + ".cluster.example";
    hosts.push_back(host(name, HostStatus::kInstalled, ops));
  }
  for (std::size_t count : {1u, 2u, 5u, 40u}) {
    RunReport report = run({hosts.begin(), hosts.begin() + static_cast<std::ptrdiff_t>(count)});
    report.columns = columns;
    for (int width : {40, 80, 120, 200}) {
      std::istringstream lines(printed(report, Style{false, false, width}));
      for (std::string line; std::getline(lines, line);) {
        if (line.starts_with("warning:") || line.starts_with("error:")) break;
        EXPECT_LE(display_width(line), static_cast<std::size_t>(width)) << line;
        EXPECT_FALSE(line.ends_with(' ')) << line;
      }
    }
  }
}

TEST(Report, In_a_pipe_every_name_is_whole_and_a_group_is_one_line) {
  std::vector<HostReport> hosts;
  std::string names;
  for (int i = 0; i < 60; ++i) {
    const std::string name = "node" + std::to_string(i * 3);
    hosts.push_back(host(name, HostStatus::kInstalled));
    names += (i > 0 ? "," : "") + std::to_string(i * 3);
  }
  hosts.push_back(host("b", HostStatus::kFailed, {}));
  const std::string text = printed(run(hosts), Style{false, false, 0});
  EXPECT_THAT(text, HasSubstr("\n  node[" + names + "] (60)  installed  ok\n"));
  EXPECT_THAT(text, HasSubstr("\n  b" + std::string(41, ' ') + "failed"));
}

TEST(Report, A_remark_on_many_hosts_is_told_once_though_their_processes_have_numbers) {
  std::vector<HostReport> hosts;
  RunReport report = run({});
  for (int i = 1; i <= 1000; ++i) {
    const std::string pid = std::to_string(4000 + i);
    HostReport row = host("node" + std::to_string(1000 + i), HostStatus::kInstalled);
    row.processes = {{4000 + i, "alice", "python3 train.py", "0123456789abcdef"}};
    report.remarks.push_back({row.host, "1 process keeps files: " + pid + " alice python3"});
    report.hosts.push_back(row);
  }
  report.remarks.push_back({"node1007", "was drained"});
  const std::string text = printed(report);
  EXPECT_THAT(text, AllOf(HasSubstr("warning: node[1001-2000] (1000 hosts): 1 process keeps files: "
                                    "<pid> alice python3\n"),
                          HasSubstr("warning: node1007: was drained\n")));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 6);
}

TEST(Report, Nothing_to_report_is_one_line) {
  EXPECT_EQ(printed(run({})), "0 hosts; 0.0 s\n");
}

TEST(ReportJson, Has_the_rows_in_their_order) {
  RunReport report =
      run({host("x", HostStatus::kInstalled), host("y", HostStatus::kUnreachable, {})});
  report.run = "r1";
  report.release = "new";
  report.seconds = std::chrono::microseconds(1234567);
  report.hosts[0].from = "old";
  report.hosts[0].to = "new";
  report.hosts[0].bytes_sent = 10'000'000'000;
  report.hosts[1].bytes_sent = 5;
  report.hosts[1].error = {"no route", "switch it on"};
  const auto lines = rows(report);
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[0], nlohmann::json::parse(
                          R"({"type":"version","version":1,"ds_install":")" DSI_VERSION R"("})"));
  EXPECT_EQ(lines[1], nlohmann::json::parse(
                          R"({"type":"host","host":"x","result":"installed","from":"old","to":"new",
                              "bytes_sent":10000000000,"seconds":0.0})"));
  EXPECT_EQ(lines[2], nlohmann::json::parse(
                          R"({"type":"host","host":"y","result":"unreachable","from":null,"to":null,
                    "bytes_sent":5,"seconds":0.0,"error":{"what":"no route","help":"switch it on"}})"));
  EXPECT_EQ(lines[3], nlohmann::json::parse(
                          R"({"type":"op","host":"x","op":"a","status":"ok","device":"cpu",
                              "detail":""})"));
  EXPECT_EQ(lines[4],
            nlohmann::json::parse(
                R"({"type":"summary","command":"install","exit_code":1,"strict":false,"hosts":2,
                    "counts":{"installed":1,"up-to-date":0,"failed":0,"unreachable":1,"refused":0},
                    "head_bytes_sent":10000000005,"seconds":1.235,"run":"r1","release":"new"})"));
}

TEST(ReportJson, The_type_comes_first_in_every_line) {
  std::ostringstream out;
  print_report_json(out, run({host("x", HostStatus::kInstalled)}));
  std::istringstream lines(out.str());
  for (std::string line; std::getline(lines, line);) EXPECT_TRUE(line.starts_with("{\"type\":\""));
}

TEST(ReportJson, Is_valid_whatever_bytes_a_node_sends) {
  std::string all;
  for (int c = 0; c < 256; ++c) all += static_cast<char>(c);
  HostReport bad = host(all, HostStatus::kFailed, {{all, all, all, all}});
  bad.error = {all, all};
  bad.from = bad.to = bad.action = all;
  RunReport report = run({bad, host("y", HostStatus::kUpToDate)});
  report.hosts[1].action = all;
  report.command = report.run = report.release = all;
  EXPECT_EQ(rows(report).size(), 6u);  // parse() refuses what is no UTF-8.
}

TEST(ReportJson, Other_commands_count_their_own_words) {
  RunReport report = run({host("x", HostStatus::kUpToDate)});
  report.command = "uninstall";
  report.hosts[0].action = "uninstalled";
  const auto summary = rows(report).back();
  EXPECT_EQ(summary["counts"],
            nlohmann::json::parse(R"({"failed":0,"unreachable":0,"refused":0,"uninstalled":1})"));
  EXPECT_TRUE(summary["release"].is_null());
}

TEST(Text, Is_cut_between_characters) {
  EXPECT_EQ(truncated("hello", 5), "hello");
  EXPECT_EQ(truncated("hello", 4), "hel…");
  EXPECT_EQ(truncated("äöüäöü", 4), "äöü…");
  EXPECT_EQ(truncated("日本語", 5), "日本…");
  EXPECT_EQ(truncated("日本語", 4), "日…");
  EXPECT_EQ(truncated("hello", 1), "…");
  EXPECT_EQ(truncated("hello", 0), "");
}

TEST(Text, Is_made_printable) {
  EXPECT_EQ(printable("a\tb\x1b\r\nc"), "a b? c");
  EXPECT_EQ(printable("a\r\nb", true), "a\nb");
  EXPECT_EQ(printable("\xff\xC3\xA4\xC3"), "\xEF\xBF\xBD\xC3\xA4\xEF\xBF\xBD");
  EXPECT_EQ(printable("\xE2\x80\xAE"
                      "evil"),
            "?evil");                                            // Right-to-left override.
  EXPECT_EQ(printable("\xC0\x80"), "\xEF\xBF\xBD\xEF\xBF\xBD");  // Overlong.
  EXPECT_EQ(printable("\xED\xA0\x80"), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");  // A surrogate.
}

TEST(Text, The_word_that_was_meant_is_found) {
  const std::vector<std::string> words = {"hostfile", "hosts", "json", "strict"};
  EXPECT_EQ(closest("hostfle", words), "hostfile");
  EXPECT_EQ(closest("hsots", words), "hosts");
  EXPECT_EQ(closest("stri", words), "strict");
  EXPECT_EQ(closest("nosj", words), "");
  EXPECT_EQ(closest("", words), "");
  EXPECT_EQ(closest(std::string(100'000, 'x'), words), "");
}

TEST(ExitCode, Of_a_host_that_is_held_is_no_failure_and_of_one_that_was_spared_is_one) {
  RunReport report;
  report.command = "install";
  HostReport done;
  done.host = "x";
  done.status = HostStatus::kInstalled;
  HostReport held = done;
  held.status = HostStatus::kHeld;
  held.error = {"held since noon", "ds-install unhold ends that"};
  report.hosts = {done, held};
  EXPECT_EQ(exit_code(report), 0);
  EXPECT_FALSE(has_failed(held, true));
  std::ostringstream out;
  print_report(out, report, Style{});
  EXPECT_NE(out.str().find("note: x: held: held since noon"), std::string::npos) << out.str();

  HostReport busy = done;
  busy.status = HostStatus::kBusy;
  report.hosts = {done, busy};
  EXPECT_EQ(exit_code(report), 1);
  report.hosts = {held};
  EXPECT_EQ(exit_code(report), 0);
}

}  // namespace
}  // namespace dsi

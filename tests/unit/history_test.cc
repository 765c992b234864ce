#include "orchestrator/history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include "orchestrator/record.h"
#include "temp_folder.h"

namespace dsi {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

HostReport host(const std::string& name, HostStatus status,
                std::vector<protocol::OpRow> ops = {{"a", "ok", "cpu", ""}}) {
  HostReport report;
  report.host = name;
  report.status = status;
  report.to = "5a2ca6a8b0b2c3d4";
  report.ops = std::move(ops);
  return report;
}

RunReport run(std::string id, std::vector<HostReport> hosts, std::string command = "install") {
  RunReport report;
  report.run = std::move(id);
  report.command = std::move(command);
  report.columns = {"a"};
  report.hosts = std::move(hosts);
  return report;
}

std::string as_text(const RunReport& report) {
  std::ostringstream out;
  print_report_json(out, report);
  return out.str();
}

void keep(const TempFolder& state, const RunReport& report) {
  auto record = Record::create(state.path(), report.run);
  ASSERT_TRUE(record);
  ASSERT_TRUE(record->write_report(report));
}

std::vector<std::string> as_words(const std::vector<Change>& changes) {
  std::vector<std::string> words;
  for (const Change& c : changes) {
    words.push_back(c.host + " " + c.what + " " + c.before + ">" + c.after);
  }
  return words;
}

TEST(ParseReport, Reads_what_print_report_json_wrote) {
  RunReport report = run("20261130-141502-3f9c",
                         {host("x", HostStatus::kInstalled),
                          host("y", HostStatus::kUpToDate, {{"a", "crash", "cuda", "SIGSEGV"}}),
                          host("z", HostStatus::kUnreachable, {})});
  report.hosts[2].error = {"no route", "plug it in"};
  report.hosts[0].bytes_sent = 1234;
  report.remarks = {{"x", "was slow"}};
  report.release = "5a2ca6a8b0b2c3d4";
  const std::string text = as_text(report);
  auto again = parse_report(text);
  ASSERT_TRUE(again) << again.error().what;
  EXPECT_EQ(as_text(*again), text);
  EXPECT_EQ(again->hosts[2].error.help, "plug it in");

  RunReport asked = run("20261130-141503-3f9c", {host("x", HostStatus::kUpToDate)}, "report");
  asked.hosts[0].action = "reported";
  again = parse_report(as_text(asked));
  ASSERT_TRUE(again);
  EXPECT_EQ(as_text(*again), as_text(asked));
}

TEST(ParseReport, Gives_back_processes_releases_prefixes_and_warnings) {
  RunReport report = run("20261130-141502-3f9c",
                         {host("x", HostStatus::kInstalled), host("y", HostStatus::kBusy, {}),
                          host("z", HostStatus::kHeld, {})});
  report.hosts[0].processes = {{4711, "alice", "python3 train.py", "0123456789abcdef"}};
  report.hosts[0].releases = {"5a2ca6a8b0b2c3d4", "0123456789abcdef"};
  report.hosts[0].prefix = "/opt/ds-ops";
  report.warnings = {"the webhook was not told"};
  auto again = parse_report(as_text(report));
  ASSERT_TRUE(again) << again.error().what;
  EXPECT_EQ(as_text(*again), as_text(report));
  EXPECT_EQ(again->hosts[0].processes, report.hosts[0].processes);
  EXPECT_EQ(again->hosts[1].status, HostStatus::kBusy);
  EXPECT_EQ(again->hosts[2].status, HostStatus::kHeld);
}

TEST(ParseReport, Knows_a_run_that_ended_before_any_host) {
  RunReport report = run("20261130-141502-3f9c", {});
  report.error = {"nothing compiles", "look at the log"};
  report.error_exit = 3;
  auto again = parse_report(as_text(report));
  ASSERT_TRUE(again) << again.error().what;
  EXPECT_EQ(exit_code(*again), 3);
  EXPECT_EQ(as_text(*again), as_text(report));
}

TEST(ParseReport, Refuses_what_is_no_report) {
  EXPECT_THAT(parse_report("").error().what, HasSubstr("no summary"));
  EXPECT_THAT(parse_report("[1]\n").error().what, HasSubstr("line 1"));
  EXPECT_THAT(parse_report("{\"type\":\"version\"}\n{\"type\":\"ho").error().what,
              HasSubstr("line 2"));
  EXPECT_THAT(parse_report("{\"type\":\"op\",\"host\":\"x\"}\n").error().what,
              HasSubstr("of no host"));
  // Other types than expected are passed over, not fatal.
  auto odd = parse_report(
      "{\"type\":\"host\",\"host\":\"x\",\"result\":7,\"error\":[],\"seconds\":\"long\"}\n"
      "{\"type\":\"summary\",\"command\":\"install\",\"exit_code\":130}\n");
  ASSERT_TRUE(odd);
  EXPECT_TRUE(odd->interrupted);
}

TEST(NewRunId, Sorts_as_the_runs_followed_on_one_another) {
  std::vector<std::string> ids;
  for (int i = 0; i < 20; ++i) {
    ids.push_back(new_run_id());
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_TRUE(std::is_sorted(ids.begin(), ids.end())) << testing::PrintToString(ids);
}

TEST(ListRuns, Gives_the_newest_first_and_nothing_where_there_is_nothing) {
  TempFolder state;
  EXPECT_THAT(list_runs(state.path()), IsEmpty());
  keep(state, run("20261130-141502-3f9c", {}));
  keep(state, run("20270101-000000-0000", {}));
  keep(state, run("20261130-141502-aaaa", {}));
  EXPECT_THAT(list_runs(state.path()),
              ElementsAre("20270101-000000-0000", "20261130-141502-aaaa", "20261130-141502-3f9c"));
}

TEST(ReportBefore, Is_the_newest_earlier_one_that_knows_a_host) {
  TempFolder state;
  keep(state, run("20261101-000000-0001", {host("x", HostStatus::kInstalled)}));
  keep(state, run("20261102-000000-0002", {host("other", HostStatus::kInstalled)}));
  keep(state, run("20261103-000000-0003", {host("x", HostStatus::kUnreachable, {})}));
  keep(state, run("20261105-000000-0005", {host("x", HostStatus::kInstalled)}));
  std::filesystem::create_directories(state.path() / "runs" / "20261104-000000-0004");
  std::ofstream(state.path() / "runs" / "20261104-000000-0004" / "report.jsonl") << "half a li";
  auto before = report_before(state.path(), "20261105-000000-0005", "", {"x", "y"});
  ASSERT_TRUE(before);
  EXPECT_EQ(before->run, "20261101-000000-0001");
  EXPECT_FALSE(report_before(state.path(), "20261105-000000-0005", "", {"nobody"}));
  EXPECT_FALSE(report_before(state.path(), "20261101-000000-0001", "", {"x"}));
}

TEST(ChangesSince, Names_what_is_not_as_it_was) {
  RunReport before =
      run("1", {host("x", HostStatus::kInstalled, {{"a", "ok", "", ""}, {"b", "ok", "", ""}}),
                host("y", HostStatus::kInstalled), host("z", HostStatus::kInstalled),
                host("w", HostStatus::kUnreachable, {})});
  RunReport now =
      run("2",
          {host("x", HostStatus::kUpToDate, {{"a", "crash", "", ""}, {"c", "ok", "", ""}}),
           host("y", HostStatus::kUpToDate), host("z", HostStatus::kUnreachable, {}),
           host("w", HostStatus::kUpToDate), host("new", HostStatus::kUpToDate)},
          "report");
  for (HostReport& h : now.hosts) h.action = h.status == HostStatus::kUpToDate ? "reported" : "";
  now.hosts[1].to = "0000000000000001";
  EXPECT_THAT(
      as_words(changes_since(before, now)),
      ElementsAre("x a ok>crash", "x b ok>", "x c >ok",
                  "y release 5a2ca6a8b0b2c3d4>0000000000000001", "z result installed>unreachable",
                  "w result unreachable>reported", "new result >reported"));
  EXPECT_THAT(changes_since(before, before), IsEmpty());
}

TEST(ReadSummary, Reads_the_last_line_only) {
  TempFolder state;
  RunReport report = run("20261130-141502-3f9c", {});
  for (int i = 0; i < 2000; ++i)
    report.hosts.push_back(host(std::to_string(i), HostStatus::kInstalled));
  report.hosts.push_back(host("away", HostStatus::kUnreachable, {}));
  keep(state, report);
  auto summary = read_summary(state.path(), report.run);
  ASSERT_TRUE(summary) << summary.error().what;
  EXPECT_EQ(summary->hosts, 2001u);
  EXPECT_EQ(summary->counts["installed"], 2000);
  EXPECT_EQ(summary->counts["unreachable"], 1);
  EXPECT_EQ(summary->exit_code, 1);
  std::ofstream(state.path() / "runs" / report.run / "report.jsonl") << "{\"type\":\"version\"}\n";
  EXPECT_THAT(read_summary(state.path(), report.run).error().what, HasSubstr("no summary"));
}

TEST(ReleasesOnRecord, Are_what_the_newest_change_left) {
  TempFolder state;
  RunReport first = run("20261101-000000-0001",
                        {host("x", HostStatus::kInstalled), host("y", HostStatus::kInstalled),
                         host("z", HostStatus::kInstalled)});
  keep(state, first);
  RunReport second =
      run("20261102-000000-0002",
          {host("x", HostStatus::kUpToDate), host("y", HostStatus::kFailed)}, "rollback");
  second.hosts[0].to = "0000000000000001";
  keep(state, second);
  RunReport gone = run("20261103-000000-0003", {host("z", HostStatus::kUpToDate)}, "uninstall");
  gone.hosts[0].to = "";
  keep(state, gone);
  RunReport asked = run("20261104-000000-0004", {host("x", HostStatus::kUpToDate)}, "report");
  asked.hosts[0].to = "ffffffffffffffff";
  keep(state, asked);
  const std::map<std::string, std::string> wanted = {
      {"x", "0000000000000001"}, {"y", "5a2ca6a8b0b2c3d4"}, {"z", ""}};
  // A package on the same hosts has releases of its own.
  RunReport package = run("20261105-000000-0005", {host("x", HostStatus::kInstalled)});
  package.package = "deepspeed";
  package.hosts[0].to = "eeeeeeeeeeeeeeee";
  keep(state, package);
  EXPECT_EQ(releases_on_record(state.path(), "", {"x", "y", "z", "nobody"}), wanted);
  const std::map<std::string, std::string> of_package = {{"x", "eeeeeeeeeeeeeeee"}};
  EXPECT_EQ(releases_on_record(state.path(), "deepspeed", {"x", "y"}), of_package);
  EXPECT_FALSE(report_before(state.path(), "20261106-000000-0006", "other", {"x"}));
}

TEST(ReleasesOnRecord, Are_those_of_the_prefix) {
  TempFolder state;
  RunReport here = run("20261101-000000-0001", {host("x", HostStatus::kInstalled)});
  here.hosts[0].prefix = "/opt/ds-ops";
  keep(state, here);
  RunReport there = run("20261102-000000-0002", {host("x", HostStatus::kInstalled)});
  there.hosts[0].prefix = "/scratch/ops";
  there.hosts[0].to = "0000000000000001";
  keep(state, there);
  auto release = [&](const char* prefix) {
    return releases_on_record(state.path(), "", {"x"}, {{"x", prefix}})["x"];
  };
  EXPECT_EQ(release("/opt/ds-ops"), "5a2ca6a8b0b2c3d4");
  EXPECT_EQ(release("/scratch/ops"), "0000000000000001");
  EXPECT_EQ(release("/nowhere"), "");
}

TEST(ReleasesOnHosts, Are_what_each_host_said_last) {
  TempFolder state;
  RunReport first = run("20261101-000000-0001",
                        {host("x", HostStatus::kInstalled), host("y", HostStatus::kInstalled),
                         host("z", HostStatus::kInstalled)});
  for (HostReport& h : first.hosts) h.releases = {"aaaa", "0000"};
  keep(state, first);
  RunReport second = run("20261102-000000-0002",
                         {host("x", HostStatus::kInstalled), host("y", HostStatus::kUnreachable)});
  second.hosts[0].releases = {"bbbb", "aaaa"};
  keep(state, second);
  RunReport gone = run("20261103-000000-0003", {host("z", HostStatus::kUpToDate)}, "uninstall");
  gone.hosts[0].action = "uninstalled";
  keep(state, gone);
  const std::map<std::string, std::set<std::string>> wanted = {
      {"aaaa", {"x", "y"}}, {"bbbb", {"x"}}, {"0000", {"y"}}};
  EXPECT_EQ(releases_on_hosts(state.path()), wanted);
}

TEST(ReleasesToGoTo, Are_one_for_all_or_what_a_run_left) {
  TempFolder state;
  RunReport first = run("20261101-000000-0001",
                        {host("x", HostStatus::kInstalled), host("y", HostStatus::kFailed),
                         host("z", HostStatus::kInstalled)});
  first.hosts[0].to = "0000000000000001";
  keep(state, first);
  keep(state, run("20261102-000000-0002", {host("x", HostStatus::kInstalled)}));
  using Targets = std::map<std::string, std::string>;
  EXPECT_EQ(releases_to_go_to(state.path(), "20261101", "", {"x", "y"}).value(),
            (Targets{{"x", "0000000000000001"}}));
  EXPECT_EQ(releases_to_go_to(state.path(), "0123456789abcdef", "", {"x", "y"}).value(),
            (Targets{{"x", "0123456789abcdef"}, {"y", "0123456789abcdef"}}));
  EXPECT_THAT(releases_to_go_to(state.path(), "2026", "", {"x"}).error().what,
              HasSubstr("2 runs begin with 2026"));
  EXPECT_THAT(releases_to_go_to(state.path(), "1999", "", {"x"}).error().what,
              HasSubstr("no record of a run 1999"));
  EXPECT_THAT(releases_to_go_to(state.path(), "20261102", "", {"y"}).error().what,
              HasSubstr("left no release on any of these hosts"));
  EXPECT_THAT(releases_to_go_to(state.path(), "20261102", "deepspeed", {"x"}).error().what,
              HasSubstr("was about the ops"));
}

TEST(HoldAgainst, Fails_who_has_another_release) {
  RunReport report =
      run("1",
          {host("same", HostStatus::kUpToDate), host("other", HostStatus::kUpToDate),
           host("unknown", HostStatus::kUpToDate), host("away", HostStatus::kUnreachable)},
          "check");
  hold_against({{"same", "5a2ca6a8b0b2c3d4"}, {"other", ""}, {"away", "x"}}, report);
  EXPECT_EQ(report.hosts[0].status, HostStatus::kUpToDate);
  EXPECT_EQ(report.hosts[1].status, HostStatus::kFailed);
  EXPECT_THAT(report.hosts[1].error.what, HasSubstr("should have no release"));
  EXPECT_EQ(report.hosts[2].status, HostStatus::kFailed);
  EXPECT_THAT(report.hosts[2].error.help, HasSubstr("--release"));
  EXPECT_EQ(report.hosts[3].status, HostStatus::kUnreachable);
}

TEST(TimeOfRun, Is_in_the_id) {
  EXPECT_EQ(time_of_run("20261130-141502-3f9c"), "2026-11-30 14:15:02 UTC");
  EXPECT_EQ(time_of_run("monday"), "monday");
  EXPECT_EQ(time_of_run("20261130x141502"), "20261130x141502");
}

}  // namespace
}  // namespace dsi

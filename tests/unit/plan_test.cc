#include "orchestrator/plan.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

namespace dsi {
namespace {

SurveyRow host(const std::string& name, const std::string& current = "",
               const std::string& arch = "x86_64") {
  SurveyRow row;
  row.host = name;
  row.facts.arch = arch;
  row.facts.prefix = "/opt/ds-ops";
  row.facts.current = current;
  return row;
}

Intention install(const std::string& release) {
  Intention intention;
  intention.command = "install";
  intention.release = release;
  intention.build.arch = "x86_64";
  return intention;
}

TEST(Plan, Decides_for_each_host_from_what_is_there) {
  SurveyRow dead = host("dead");
  dead.status = HostStatus::kUnreachable;
  dead.error = {"connection refused by dead port 22", ""};
  Plan plan = make_plan(install("new"), {host("empty"), host("old", "old"), host("same", "new"),
                                         host("arm", "", "aarch64"), dead});
  std::vector<Action> actions;
  for (const PlannedHost& planned : plan.hosts) actions.push_back(planned.action);
  EXPECT_EQ(actions, (std::vector<Action>{Action::kInstall, Action::kReplace, Action::kVerify,
                                          Action::kRefuse, Action::kNone}));
  EXPECT_EQ(plan.hosts[3].status, HostStatus::kRefused);
  EXPECT_NE(plan.hosts[3].error.what.find("aarch64"), std::string::npos);
  EXPECT_FALSE(plan.all_refused());
}

TEST(Plan, Leaves_a_host_that_is_held_as_it_is_unless_it_is_to_ignore_that) {
  SurveyRow held = host("pinned", "old");
  held.facts.held = "since noon by alice@head: a paper";
  Plan plan = make_plan(install("new"), {held, host("free", "old")});
  EXPECT_EQ(plan.hosts[0].action, Action::kHold);
  EXPECT_EQ(plan.hosts[0].status, HostStatus::kHeld);
  EXPECT_EQ(plan.hosts[0].error.what, "held since noon by alice@head: a paper");
  EXPECT_EQ(plan.hosts[1].action, Action::kReplace);
  EXPECT_FALSE(plan.all_refused());
  std::ostringstream out;
  print_plan(out, plan);
  EXPECT_NE(out.str().find("pinned (1 host): held since noon by alice@head: a paper\n"),
            std::string::npos)
      << out.str();

  // Before the build it is not known whether there is anything to change.
  plan = make_plan(install(""), {held});
  EXPECT_EQ(plan.hosts[0].action, Action::kDecide);
  ASSERT_EQ(plan.hosts[0].warnings.size(), 1u);
  EXPECT_EQ(
      plan.hosts[0].warnings[0],
      "held since noon by alice@head: a paper; left as it is unless the build is what it has");

  // What it has may be verified, looked at, and its hold ended.
  EXPECT_EQ(make_plan(install("old"), {held}).hosts[0].action, Action::kVerify);
  for (const char* command : {"report", "check", "hold", "unhold"}) {
    Intention intention = install("");
    intention.command = command;
    EXPECT_EQ(make_plan(intention, {held}).hosts[0].action, Action::kLeave) << command;
  }
  for (const char* command : {"install", "rollback", "uninstall"}) {
    Intention intention = install("new");
    intention.command = command;
    EXPECT_EQ(make_plan(intention, {held}).hosts[0].action, Action::kHold) << command;
    intention.ignore_holds = true;
    EXPECT_NE(make_plan(intention, {held}).hosts[0].action, Action::kHold) << command;
  }
}

TEST(Plan, Does_not_pretend_to_know_a_release_that_is_not_built) {
  EXPECT_EQ(make_plan(install(""), {host("a", "old")}).hosts[0].action, Action::kDecide);
}

TEST(Plan, Refuses_all_only_if_all_are_refused) {
  EXPECT_TRUE(make_plan(install("x"), {host("a", "", "aarch64")}).all_refused());
  EXPECT_FALSE(make_plan(install("x"), {}).all_refused());
}

TEST(Plan, Folds_hosts_with_the_same_error_into_one_line) {
  std::vector<SurveyRow> rows;
  for (const char* name : {"node01", "node02", "node03"}) {
    SurveyRow row = host(name);
    row.status = HostStatus::kUnreachable;
    row.error = {std::string("connection refused by ") + name + " port 22",
                 "is sshd running there?"};
    rows.push_back(row);
  }
  std::ostringstream out;
  print_plan(out, make_plan(install("x"), rows));
  EXPECT_NE(out.str().find("node[01-03] (3 hosts): cannot: connection refused by it port 22"),
            std::string::npos)
      << out.str();
}

TEST(Plan, Takes_a_host_s_name_out_of_its_error_and_no_other_word) {
  SurveyRow row = host("d");
  row.status = HostStatus::kUnreachable;
  row.error = {"connection refused by d port 22, asked for d.cluster by deepspeed (d)", ""};
  std::ostringstream out;
  print_plan(out, make_plan(install("x"), {row}));
  EXPECT_NE(out.str().find("refused by it port 22, asked for d.cluster by deepspeed (it)"),
            std::string::npos)
      << out.str();
}

TEST(Plan, As_json_has_a_row_for_each_host) {
  std::ostringstream out;
  print_plan_json(out, make_plan(install("new"), {host("a"), host("b", "new")}));
  std::istringstream lines(out.str());
  std::vector<nlohmann::json> rows;
  for (std::string line; std::getline(lines, line);) rows.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].at("type"), "plan");
  EXPECT_EQ(rows[1].at("action"), "install");
  EXPECT_TRUE(rows[1].at("from").is_null());
  EXPECT_EQ(rows[2].at("action"), "verify");
}

}  // namespace
}  // namespace dsi

// Hosts that run the jobs of a real Slurm.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <thread>

#include "tests/net/cluster.h"

namespace dsi {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Not;

class Slurm : public ::testing::Test {
 protected:
  void start(int hosts) {
    cluster_ = std::make_unique<Cluster>(hosts);
    if (!cluster_->why_not().empty()) return;
    ::setenv("SLURM_CONF", ("/run/dsi-slurm-" + cluster_->name() + "/slurm.conf").c_str(), 1);
    Outcome started = slurm("start");
    ASSERT_EQ(started.exit_code, 0) << started.err;
  }
  void TearDown() override {
    if (cluster_ && cluster_->why_not().empty()) slurm("stop");
    ::unsetenv("SLURM_CONF");
  }

  Outcome slurm(const std::string& word) {
    LocalProcessRunner processes;
    auto result = processes.run(
        {{std::string(DSI_SOURCE_FOLDER) + "/scripts/dev/cluster-slurm", cluster_->name(), word},
         {},
         {}},
        Deadline::after(150s), {});
    if (!result) return {-1, "", result.error().what};
    return {result->exit_code, result->out, result->err};
  }

  // A job on two hosts that ends when end_jobs() says so.
  void begin_job(const std::string& nodes, int count) {
    Outcome job =
        cluster_->on_head({"sbatch", "-N" + std::to_string(count), "-w", nodes, "-o", "/dev/null",
                           "--wrap", "until test -e /tmp/end-of-job; do sleep 0.1; done"});
    ASSERT_EQ(job.exit_code, 0) << job.err;
    ASSERT_TRUE(eventually([&] {
      return cluster_->on_head({"squeue", "-h", "-t", "R", "-o", "%A"}).out != "";
    }));
  }
  void end_jobs(int node) { cluster_->on_node(node, "touch /tmp/end-of-job"); }

  std::future<JsonReport> install(std::vector<std::string> arguments = {}) {
    arguments.insert(arguments.begin(), {"--ops", "cpu_lion", "--drain", "slurm"});
    return std::async(std::launch::async,
                      [this, arguments] { return cluster_->ds_install_json(arguments); });
  }
  bool installed(int node) {
    return cluster_->on_node(node, "test -e /opt/ds-ops/current").exit_code == 0;
  }
  // "node001 idle\nnode002 drained\n"
  std::string states() { return cluster_->on_head({"sinfo", "-h", "-N", "-o", "%N %T"}).out; }
  std::string reasons() { return cluster_->on_head({"sinfo", "-h", "-R", "-o", "%N %E"}).out; }

  static bool eventually(const std::function<bool()>& good) {
    for (int i = 0; i < 600; ++i) {
      if (good()) return true;
      std::this_thread::sleep_for(100ms);
    }
    return false;
  }

  std::unique_ptr<Cluster> cluster_;
};

#define START(n) \
  start(n);      \
  if (!cluster_->why_not().empty()) GTEST_SKIP() << cluster_->why_not()

std::string remarks(const JsonReport& report) {
  std::string text;
  for (const nlohmann::json& row : report.rows) {
    if (row.value("type", "") == "remark") {
      text += row.value("host", "") + " " + row.value("text", "") + "\n";
    }
  }
  return text;
}

TEST_F(Slurm, Hosts_with_jobs_are_done_when_the_jobs_have_ended_and_all_are_given_back) {
  START(8);
  begin_job("node[007-008]", 2);
  std::future<JsonReport> run = install();
  for (int node = 1; node <= 6; ++node) {
    EXPECT_TRUE(eventually([&] { return installed(node); })) << node;
  }
  EXPECT_TRUE(eventually([&] { return states().find("node001 idle") != std::string::npos; }));
  EXPECT_FALSE(installed(7));
  EXPECT_FALSE(installed(8));
  EXPECT_THAT(states(), HasSubstr("node007 draining"));
  EXPECT_THAT(reasons(), HasSubstr("node[007-008] ds-install 20"));
  end_jobs(7);
  JsonReport report = run.get();
  EXPECT_EQ(report.exit_code, 0) << report.err;
  EXPECT_EQ(report.count("installed"), 8);
  EXPECT_TRUE(report.every_op_is_ok());
  EXPECT_EQ(reasons(), "");
  EXPECT_THAT(states(), Not(HasSubstr("drain")));
}

TEST_F(Slurm, What_somebody_else_drained_stays_drained) {
  START(2);
  cluster_->on_head(
      {"scontrol", "update", "NodeName=node002", "State=DRAIN", "Reason=disk is slow"});
  JsonReport report = install().get();
  EXPECT_EQ(report.exit_code, 0) << report.err;
  EXPECT_EQ(report.count("installed"), 2);
  EXPECT_THAT(remarks(report),
              HasSubstr("node002 was out of service before (drained: disk is slow)"));
  EXPECT_EQ(reasons(), "node002 disk is slow\n");
  EXPECT_THAT(states(), HasSubstr("node001 idle"));
}

TEST_F(Slurm, A_host_whose_report_is_not_good_stays_out_of_service) {
  START(2);
  JsonReport report = cluster_->ds_install_json(
      {"--ops-dir", std::string(DSI_SOURCE_FOLDER) + "/tests/net/ops", "--ops",
       "cpu_lion,crashes_on_load", "--drain", "slurm", "--batch", "1"});
  EXPECT_EQ(report.exit_code, 1);
  EXPECT_EQ(report.count("failed"), 1);
  EXPECT_EQ(report.count("not-tried"), 1);
  EXPECT_THAT(remarks(report), HasSubstr("node001 stays out of service"));
  EXPECT_THAT(states(), HasSubstr("node001 drained"));
  EXPECT_THAT(states(), HasSubstr("node002 idle"));
}

TEST_F(Slurm, Jobs_that_do_not_end_in_time_leave_their_host_as_it_is) {
  START(2);
  begin_job("node002", 1);
  JsonReport report = install({"--drain-limit", "3s"}).get();
  EXPECT_EQ(report.exit_code, 1);
  EXPECT_EQ(report.host("node001").value("result", ""), "installed");
  EXPECT_EQ(report.host("node002").value("result", ""), "not-tried");
  EXPECT_THAT(report.host("node002").at("error").value("what", ""), HasSubstr("jobs still ran"));
  EXPECT_FALSE(installed(2));
  EXPECT_EQ(reasons(), "");
  end_jobs(2);
}

TEST_F(Slurm, A_run_that_was_killed_is_finished_by_the_next) {
  START(2);
  begin_job("node002", 1);
  std::vector<std::string> command =
      cluster_->ds_install_command({"--ops", "cpu_lion", "--drain", "slurm"});
  command.insert(command.begin(), {"timeout", "-s", "KILL", "600"});
  std::future<Outcome> first =
      std::async(std::launch::async, [&] { return cluster_->on_head(command); });
  ASSERT_TRUE(eventually(
      [&] { return installed(1) && states().find("node002 draining") != std::string::npos; }));
  // In brackets, so that the command that looks for it does not find itself.
  cluster_->on_head(
      {"pkill", "-KILL", "-f", "[d]s-install --ops cpu_lion .*" + cluster_->folder()});
  first.wait();
  EXPECT_THAT(states(), HasSubstr("node002 draining"));
  end_jobs(2);
  JsonReport second = install().get();
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_EQ(second.host("node002").value("result", ""), "installed");
  EXPECT_EQ(reasons(), "");
}

TEST_F(Slurm, A_controller_that_stops_half_way_is_said_and_the_next_run_finishes) {
  START(2);
  begin_job("node002", 1);
  std::future<JsonReport> run = install();
  ASSERT_TRUE(eventually(
      [&] { return states().find("node001 idle") != std::string::npos && installed(1); }));
  // It writes its state when it is told to end: one that was killed gives a job's number twice.
  cluster_->on_head({"scontrol", "shutdown", "slurmctld"});
  JsonReport report = run.get();
  EXPECT_EQ(report.exit_code, 1);
  EXPECT_EQ(report.host("node001").value("result", ""), "installed");
  EXPECT_EQ(report.host("node002").value("result", ""), "not-tried");
  EXPECT_THAT(report.host("node002").at("error").value("what", ""),
              HasSubstr("cannot ask Slurm for its nodes"));
  EXPECT_THAT(remarks(report), HasSubstr("node002 stays out of service"));
  EXPECT_FALSE(installed(2));

  ASSERT_EQ(cluster_->on_head({"slurmctld"}).exit_code, 0);
  end_jobs(2);
  ASSERT_TRUE(eventually([&] { return states().find("node002 drained") != std::string::npos; }))
      << states();
  JsonReport second = install().get();
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_EQ(reasons(), "");
}

TEST_F(Slurm, Reaches_hosts_that_have_no_sshd) {
  START(3);
  for (const char* node : {"1", "2", "3"}) {
    ASSERT_EQ(cluster_->control({"kill-sshd", node}).exit_code, 0);
  }
  const std::vector<std::string> arguments = {"--ops", "cpu_lion",    "--via",
                                              "slurm", "--partition", "all"};
  JsonReport report = cluster_->ds_install_json(arguments);
  EXPECT_EQ(report.exit_code, 0) << report.err;
  EXPECT_EQ(report.count("installed"), 3);
  EXPECT_TRUE(report.every_op_is_ok());
  EXPECT_TRUE(installed(3));
  EXPECT_EQ(cluster_->ds_install_json(arguments).count("up-to-date"), 3);
  // Nothing is left of it: no job, no agent.
  EXPECT_TRUE(eventually([&] { return cluster_->on_head({"squeue", "-h"}).out.empty(); }));
  EXPECT_EQ(cluster_->on_node(1, "pgrep -f '[s]tore/.* serve'").out, "");

  // Inside an allocation its nodes are meant.
  Outcome inside = cluster_->on_head({"salloc", "-Q", "-N2", "-w", "node[001-002]", DSI_PROGRAM,
                                      "report", "-r", "--via", "slurm", "--json"});
  JsonReport two = read_json_report(inside);
  EXPECT_EQ(two.exit_code, 0) << two.err;
  EXPECT_EQ(two.count("reported"), 2);

  // A host whose jobs do not end is unreachable in time, and said to be.
  begin_job("node003", 1);
  JsonReport busy = cluster_->ds_install_json(
      {"report", "--via", "slurm", "--hosts", "node[002-003]", "--connect-timeout", "3"});
  EXPECT_EQ(busy.exit_code, 1);
  EXPECT_EQ(busy.host("node002").value("result", ""), "reported");
  EXPECT_EQ(busy.host("node003").value("result", ""), "unreachable");
  EXPECT_THAT(busy.host("node003").at("error").value("what", ""),
              HasSubstr("Slurm gives no allocation on node003"));
  end_jobs(3);
}

TEST(DrainCommands, Are_run_for_each_host_and_one_that_fails_spares_it) {
  DSI_CLUSTER(cluster, 3);
  const std::string log = cluster.folder() + "/log";
  JsonReport report = cluster.ds_install_json(
      {"--ops", "cpu_lion", "--drain",
       "echo take $DSI_HOST >>" + log + "; test $DSI_HOST != node002 || { echo is busy; exit 3; }",
       "--undrain", "echo give $DSI_HOST $DSI_RUN >>" + log});
  EXPECT_EQ(report.exit_code, 1);
  EXPECT_EQ(report.count("installed"), 2);
  EXPECT_THAT(report.host("node002").at("error").value("what", ""),
              HasSubstr("the command of --drain ended with exit code 3: is busy"));
  const std::string text = cluster.on_head({"sort", log}).out;
  const std::string run = report.summary().value("run", "");
  // What failed half-way may have taken its host out of service, so that is undone as well.
  EXPECT_EQ(text, "give node001 " + run + "\ngive node002 " + run + "\ngive node003 " + run +
                      "\ntake node001\ntake node002\ntake node003\n");
  EXPECT_NE(cluster.on_node(2, "test -e /opt/ds-ops").exit_code, 0);
}

}  // namespace
}  // namespace dsi

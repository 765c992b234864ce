// Batches, windows, and what is said afterwards: check, history, metrics.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "orchestrator/base/file.h"
#include "tests/net/cluster.h"

namespace dsi {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kOps = std::string(DSI_SOURCE_FOLDER) + "/tests/net/ops";

std::string current(Cluster& cluster, int node) {
  return cluster.on_node(node, "readlink /opt/ds-ops/current").out;
}

TEST(Batches, A_canary_that_fails_keeps_its_release_and_nobody_else_is_touched) {
  DSI_CLUSTER(cluster, 8);
  JsonReport good = cluster.ds_install_json({"--ops", "cpu_lion"});
  ASSERT_EQ(good.exit_code, 0) << good.err;
  const std::string before = current(cluster, 1);

  JsonReport bad = cluster.ds_install_json(
      {"--ops-dir", kOps, "--ops", "cpu_lion,crashes_on_load", "--batch", "1,50%"});
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_EQ(bad.count("failed"), 1);
  EXPECT_EQ(bad.host("node001").value("result", ""), "failed");
  EXPECT_EQ(bad.count("not-tried"), 7);
  EXPECT_THAT(bad.host("node003").at("error").value("what", ""),
              HasSubstr("1 of the 1 host before it failed"));
  for (int node = 1; node <= 8; ++node) EXPECT_EQ(current(cluster, node), before) << node;
  EXPECT_EQ(cluster.on_node(3, "ls /opt/ds-ops/releases | wc -l").out, "1\n");
  Outcome record = cluster.on_head({DSI_PROGRAM, "history", "show", "last"});
  EXPECT_THAT(record.out, AllOf(HasSubstr("node001: failed"), HasSubstr("1 of the 1 host before")));
}

TEST(Batches, One_after_the_other_all_hosts_are_installed) {
  DSI_CLUSTER(cluster, 4);
  JsonReport report = cluster.ds_install_json({"--ops", "cpu_lion", "--batch", "1,50%"});
  EXPECT_EQ(report.exit_code, 0) << report.err;
  EXPECT_EQ(report.count("installed"), 4);
  EXPECT_TRUE(report.every_op_is_ok());
  EXPECT_THAT(report.err, AllOf(HasSubstr("1 of 3: node001: 1 of 1 well"),
                                HasSubstr("2 of 3: node[002-003]: 2 of 2 well"),
                                HasSubstr("3 of 3: node004: 1 of 1 well")));
}

TEST(Batches, Hosts_that_cannot_be_reached_count_as_failed) {
  DSI_CLUSTER(cluster, 4);
  ASSERT_EQ(cluster.control({"kill-sshd", "2"}).exit_code, 0);
  std::vector<std::string> arguments = {"--ops", "cpu_lion",          "--batch",
                                        "2,1",   "--connect-timeout", "5"};
  JsonReport report = cluster.ds_install_json(arguments);
  EXPECT_EQ(report.exit_code, 1);
  EXPECT_EQ(report.host("node001").value("result", ""), "installed");
  EXPECT_EQ(report.host("node002").value("result", ""), "unreachable");
  EXPECT_EQ(report.count("not-tried"), 2);

  arguments.insert(arguments.end(), {"--max-fail", "25%"});
  report = cluster.ds_install_json(arguments);
  EXPECT_EQ(report.exit_code, 1);
  EXPECT_EQ(report.count("installed"), 2);
  EXPECT_EQ(report.count("up-to-date"), 1);
}

TEST(Batches, A_window_that_closes_lets_what_began_end_and_begins_nothing) {
  DSI_CLUSTER(cluster, 3);
  const std::string bundle = cluster.folder() + "/slow.tar.zst";
  ASSERT_EQ(cluster
                .on_head({DSI_PROGRAM, "build", "--ops-dir", kOps, "--ops", "takes_its_time", "-o",
                          bundle})
                .exit_code,
            0);
  JsonReport report =
      cluster.ds_install_json({"--bundle", bundle, "--batch", "1", "--window", "8s"});
  EXPECT_EQ(report.exit_code, 1);
  EXPECT_EQ(report.host("node001").value("result", ""), "installed") << report.err;
  EXPECT_EQ(report.count("not-tried"), 2);
  EXPECT_THAT(report.host("node002").at("error").value("what", ""),
              HasSubstr("the window of 8s closed before its turn"));
  EXPECT_NE(cluster.on_node(2, "test -e /opt/ds-ops").exit_code, 0);
}

TEST(Batches, Racks_take_turns) {
  DSI_CLUSTER(cluster, 4);
  const std::string config = cluster.folder() + "/config.yaml";
  ASSERT_TRUE(write_file_atomically(
      config, "hosts: {\"node[001-002]\": {rack: a}, \"node[003-004]\": {rack: b}}\n"));
  JsonReport report = cluster.ds_install_json(
      {"--config", config, "--ops", "cpu_lion", "--batch", "2", "--order", "racks"});
  EXPECT_EQ(report.exit_code, 0) << report.err;
  EXPECT_THAT(report.err,
              AllOf(HasSubstr("1 of 2: node[001,003]"), HasSubstr("2 of 2: node[002,004]")));
}

TEST(Check, Names_what_drifted_and_leaves_metrics) {
  DSI_CLUSTER(cluster, 3);
  JsonReport none = cluster.ds_install_json({"check"});
  EXPECT_EQ(none.exit_code, 1);
  JsonReport first = cluster.ds_install_json({"--ops", "cpu_lion"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const std::string release = first.host("node001").value("to", "");
  EXPECT_EQ(cluster.ds_install({"check"}).exit_code, 0);

  // Another release on one host that no run on record put there, and a broken op on another.
  ASSERT_EQ(cluster.ds_install_json({"--ops", "cpu_lion,utils", "--hosts", "node002"}).exit_code,
            0);
  cluster.on_node(3, ": > /opt/ds-ops/current/lib/libds_cpu_lion.so");
  const std::string metrics = cluster.folder() + "/ds.prom";
  JsonReport drift = cluster.ds_install_json({"check", "--release", release, "--metrics", metrics});
  EXPECT_EQ(drift.exit_code, 1);
  EXPECT_EQ(drift.host("node001").value("result", ""), "reported");
  EXPECT_EQ(drift.host("node002").value("result", ""), "failed");
  EXPECT_THAT(drift.host("node002").at("error").value("what", ""),
              HasSubstr("should have release " + release));
  EXPECT_EQ(drift.op("node003", "cpu_lion").value("status", ""), "damaged");
  const std::string text = read_file(metrics).value_or("");
  EXPECT_THAT(
      text,
      AllOf(HasSubstr("ds_install_host_well{host=\"node001\",release=\"" + release + "\"} 1\n"),
            HasSubstr("ds_install_op_ok{host=\"node003\",op=\"cpu_lion\",device=\"cpu\"} 0\n"),
            HasSubstr("ds_install_run_exit_code{command=\"check\"")));
}

TEST(History, Tells_of_earlier_runs) {
  DSI_CLUSTER(cluster, 2);
  Outcome empty = cluster.on_head({DSI_PROGRAM, "history"});
  EXPECT_EQ(empty.exit_code, 0);
  EXPECT_THAT(empty.out, HasSubstr("no run is on record"));
  JsonReport run = cluster.ds_install_json({"--ops", "cpu_lion"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const std::string id = run.summary().value("run", "");
  EXPECT_THAT(
      cluster.on_head({DSI_PROGRAM, "history"}).out,
      AllOf(HasSubstr(id + "  install"), HasSubstr("exit 0"), HasSubstr("2 hosts: 2 installed")));
  EXPECT_THAT(cluster.on_head({DSI_PROGRAM, "history", "show", "last"}).out,
              AllOf(HasSubstr("node[001-002] (2)"), HasSubstr(id)));
  const std::string page = cluster.folder() + "/page.html";
  EXPECT_EQ(
      cluster.on_head({DSI_PROGRAM, "history", "show", id.substr(0, 8), "--html", page}).exit_code,
      0);
  EXPECT_THAT(read_file(page).value_or(""), HasSubstr("node002"));
  Outcome unknown = cluster.on_head({DSI_PROGRAM, "history", "show", "1999"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("there is no record of a run 1999"));
}

}  // namespace
}  // namespace dsi

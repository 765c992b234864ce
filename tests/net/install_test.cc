// The main job on real hosts, as a user sees it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/net/cluster.h"

namespace dsi {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// What can be in a hostfile and still be eight hosts.
constexpr char kEightHosts[] =
    "# the training nodes\r\n"
    "node001 slots=8\r\n"
    "\r\n"
    "node[002-005] slots=8   # a rack\r\n"
    "node006 slots=4 max_slots=8\r\n"
    "node007:2\r\n"
    "node008 slots=8";

TEST(Install, Eight_hosts_get_every_op_and_a_second_run_sends_nothing) {
  DSI_CLUSTER(cluster, 8);
  std::string hostfile = cluster.write_hostfile(kEightHosts);
  JsonReport first = cluster.ds_install_json({"-H", hostfile});
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(first.count("installed"), 8);
  EXPECT_TRUE(first.every_op_is_ok());
  for (const char* op : {"cpu_adam", "cpu_adagrad", "cpu_lion"}) {
    EXPECT_EQ(first.op("node008", op).value("status", ""), "ok");
  }
  EXPECT_EQ(first.rows.front().value("type", ""), "version");
  EXPECT_EQ(first.rows.back().value("type", ""), "summary");
  EXPECT_EQ(first.summary().value("exit_code", -1), 0);

  JsonReport second = cluster.ds_install_json({"-H", hostfile});
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_EQ(second.count("up-to-date"), 8);
  EXPECT_TRUE(second.every_op_is_ok());
  // The manifest goes to each host again, and a request; no file does.
  EXPECT_LT(second.summary().at("head_bytes_sent").get<long>(), 8 * 16 * 1024);
  EXPECT_GT(first.summary().at("head_bytes_sent").get<long>(), 8 * 100 * 1024);
}

TEST(Install, A_node_shows_what_is_installed_in_DeepSpeeds_form) {
  DSI_CLUSTER(cluster, 1);
  ASSERT_EQ(cluster.ds_install({}).exit_code, 0);
  Outcome report = cluster.on_node(1, "/opt/ds-ops/current/bin/ds-report");
  EXPECT_EQ(report.exit_code, 0) << report.out << report.err;
  EXPECT_THAT(report.out, AllOf(HasSubstr(std::string(50, '-')), HasSubstr("cpu_adam ......"),
                                HasSubstr("[YES]"), HasSubstr("[OKAY]"), HasSubstr("node001")));
}

TEST(Install, An_upgrade_can_be_rolled_back_and_uninstalled) {
  DSI_CLUSTER(cluster, 2);
  JsonReport first = cluster.ds_install_json({"--ops", "cpu_lion"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  std::string old_release = first.host("node001").value("to", "");
  JsonReport second = cluster.ds_install_json({});
  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_EQ(second.host("node001").value("from", ""), old_release);
  std::string new_release = second.host("node001").value("to", "");
  EXPECT_NE(new_release, old_release);
  EXPECT_EQ(cluster.on_node(2, "ls /opt/ds-ops/releases | wc -l").out, "2\n");

  JsonReport back = cluster.ds_install_json({"rollback"});
  EXPECT_EQ(back.exit_code, 0) << back.err;
  EXPECT_EQ(back.host("node002").value("to", ""), old_release);
  EXPECT_EQ(cluster.on_node(2, "readlink /opt/ds-ops/current").out,
            "releases/" + old_release + "\n");

  JsonReport gone = cluster.ds_install_json({"uninstall"});
  EXPECT_EQ(gone.exit_code, 0) << gone.err;
  EXPECT_NE(cluster.on_node(1, "test -e /opt/ds-ops").exit_code, 0);

  JsonReport report = cluster.ds_install_json({"report"});
  EXPECT_EQ(report.exit_code, 1);
  EXPECT_THAT(report.host("node001").at("error").value("what", ""),
              HasSubstr("nothing is installed"));
}

TEST(Install, A_plan_touches_no_host) {
  DSI_CLUSTER(cluster, 2);
  Outcome plan = cluster.ds_install({"plan"});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("node[001-002] (2 hosts): install in /opt/ds-ops"));
  EXPECT_NE(cluster.on_node(1, "test -e /opt/ds-ops").exit_code, 0);
  ASSERT_EQ(cluster.ds_install({}).exit_code, 0);
  EXPECT_THAT(cluster.ds_install({"--dry-run"}).out, HasSubstr("already there"));
}

// The second torch is that of scripts/dev/deepspeed-environment; the first the system's.
TEST(Install, Hosts_with_two_torches_get_a_build_each_in_one_run) {
  const char* told = std::getenv("DSI_DEEPSPEED_CACHE");
  const std::string cache =
      told != nullptr ? told : std::string(std::getenv("HOME")) + "/.cache/ds-install/deepspeed";
  const std::string torch = cache + "/new/env/lib/python3.11/site-packages/torch";
  if (!std::filesystem::exists(torch + "/lib/libtorch_cpu.so")) {
    GTEST_SKIP() << "there is no second torch in " << torch;
  }
  if (!std::filesystem::exists("/usr/lib/x86_64-linux-gnu/libtorch_cpu.so")) {
    GTEST_SKIP() << "the system has no torch to build with";
  }
  DSI_CLUSTER(cluster, 4);
  const std::string config = cluster.folder() + "/site.yaml";
  std::ofstream(config) << "torch: /usr\nops: [cpu_lion]\nhosts:\n  node[003-004]: {build-torch: "
                        << torch << "}\n";
  Outcome plan = cluster.ds_install({"plan", "--config", config});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("Plan: install 2 variants\n"));
  EXPECT_THAT(plan.out, HasSubstr("for node[001-002]: nothing else is said\n"));
  EXPECT_THAT(plan.out, HasSubstr("for node[003-004]: the configuration names it\n"));

  JsonReport both = cluster.ds_install_json({"--config", config});
  EXPECT_EQ(both.exit_code, 0) << both.err;
  EXPECT_EQ(both.count("installed"), 4) << both.err;
  EXPECT_TRUE(both.every_op_is_ok());
  EXPECT_TRUE(both.summary().at("release").is_null());
  EXPECT_EQ(both.host("node001").at("to"), both.host("node002").at("to"));
  EXPECT_EQ(both.host("node003").at("to"), both.host("node004").at("to"));
  EXPECT_NE(both.host("node001").at("to"), both.host("node003").at("to"));

  JsonReport again = cluster.ds_install_json({"--config", config});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(again.count("up-to-date"), 4) << again.err;
}

TEST(Install, A_bundle_is_installed_without_a_compiler) {
  DSI_CLUSTER(cluster, 1);
  std::string bundle = cluster.folder() + "/ops.tar.zst";
  Outcome build = cluster.on_head({DSI_PROGRAM, "build", "-o", bundle});
  ASSERT_EQ(build.exit_code, 0) << build.err;
  // A PATH without compilers.
  Outcome install = cluster.on_head({"env", "PATH=/nonexistent", DSI_PROGRAM, "--bundle", bundle,
                                     "-r", "-H", cluster.default_hostfile()});
  EXPECT_EQ(install.exit_code, 0) << install.err;
  EXPECT_THAT(install.out, HasSubstr("cpu_adam"));
}

TEST(Install, A_broken_bundle_is_refused_before_any_host_is_asked) {
  DSI_CLUSTER(cluster, 1);
  std::string bundle = cluster.folder() + "/ops.tar.zst";
  ASSERT_EQ(cluster.on_head({DSI_PROGRAM, "build", "-o", bundle}).exit_code, 0);
  cluster.on_head({"truncate", "-s", "-100", bundle});
  Outcome install = cluster.ds_install({"--bundle", bundle});
  EXPECT_EQ(install.exit_code, 2);
  EXPECT_THAT(install.err, AllOf(HasSubstr("error: cannot use the bundle"), HasSubstr("help:")));
  EXPECT_NE(cluster.on_node(1, "test -e /opt/ds-ops").exit_code, 0);
}

TEST(Install, An_op_that_does_not_compile_stops_the_run_and_keep_going_reports_it) {
  DSI_CLUSTER(cluster, 1);
  std::string ops = std::string(DSI_SOURCE_FOLDER) + "/tests/net/ops";
  JsonReport stopped =
      cluster.ds_install_json({"--ops-dir", ops, "--ops", "cpu_lion,does_not_compile"});
  EXPECT_EQ(stopped.exit_code, 3);
  EXPECT_THAT(stopped.err, AllOf(HasSubstr("does_not_compile"), HasSubstr("no host was touched")));
  EXPECT_NE(cluster.on_node(1, "test -e /opt/ds-ops").exit_code, 0);

  JsonReport kept = cluster.ds_install_json(
      {"--ops-dir", ops, "--ops", "cpu_lion,does_not_compile", "--keep-going"});
  EXPECT_EQ(kept.exit_code, 0) << kept.err;
  EXPECT_EQ(kept.op("node001", "cpu_lion").value("status", ""), "ok");
  EXPECT_EQ(kept.op("node001", "does_not_compile").value("status", ""), "not-built");
}

TEST(Install, An_op_that_crashes_on_load_is_one_cell) {
  DSI_CLUSTER(cluster, 2);
  std::string ops = std::string(DSI_SOURCE_FOLDER) + "/tests/net/ops";
  std::vector<std::string> arguments = {"--ops-dir", ops, "--ops", "cpu_lion,crashes_on_load"};
  JsonReport report = cluster.ds_install_json(arguments);
  EXPECT_EQ(report.exit_code, 0) << report.err;
  EXPECT_EQ(report.op("node002", "cpu_lion").value("status", ""), "ok");
  EXPECT_EQ(report.op("node002", "crashes_on_load").value("status", ""), "crash");
  EXPECT_THAT(report.op("node002", "crashes_on_load").value("detail", ""), HasSubstr("SIGABRT"));

  // A release like this does not replace a good one when the user is strict.
  JsonReport good = cluster.ds_install_json({"--ops", "cpu_lion"});
  ASSERT_EQ(good.exit_code, 0) << good.err;
  std::string release = good.host("node001").value("to", "");
  arguments.push_back("--strict");
  JsonReport strict = cluster.ds_install_json(arguments);
  EXPECT_EQ(strict.exit_code, 1);
  EXPECT_EQ(strict.host("node001").value("result", ""), "failed");
  EXPECT_EQ(cluster.on_node(1, "readlink /opt/ds-ops/current").out, "releases/" + release + "\n");
}

TEST(Report, An_emptied_library_is_named_for_its_node_and_op_and_a_run_mends_it) {
  DSI_CLUSTER(cluster, 3);
  ASSERT_EQ(cluster.ds_install({}).exit_code, 0);
  cluster.on_node(2, ": > /opt/ds-ops/current/lib/libds_cpu_adam.so");
  JsonReport report = cluster.ds_install_json({"report", "--strict"});
  EXPECT_EQ(report.exit_code, 1);
  EXPECT_EQ(report.op("node002", "cpu_adam").value("status", ""), "damaged");
  EXPECT_THAT(report.op("node002", "cpu_adam").value("detail", ""), HasSubstr("empty"));
  EXPECT_EQ(report.op("node002", "cpu_lion").value("status", ""), "ok");
  EXPECT_EQ(report.op("node001", "cpu_adam").value("status", ""), "ok");

  JsonReport mended = cluster.ds_install_json({});
  EXPECT_EQ(mended.exit_code, 0) << mended.err;
  EXPECT_TRUE(mended.every_op_is_ok());
  EXPECT_EQ(mended.host("node001").value("result", ""), "up-to-date");
  EXPECT_EQ(mended.host("node002").value("result", ""), "installed");
}

TEST(Report, A_person_gets_a_matrix_with_hosts_folded) {
  DSI_CLUSTER(cluster, 3);
  Outcome run = cluster.ds_install({});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("node[001-003]"), HasSubstr("cpu_adam"), HasSubstr("ok"),
                             HasSubstr("3 hosts")));
}

TEST(Local, The_same_path_without_ssh) {
  DSI_CLUSTER(cluster, 1);
  std::string prefix = cluster.folder() + "/local prefix";
  JsonReport first = cluster.ds_install_json({"-l", "--prefix", prefix});
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(first.count("installed"), 1);
  EXPECT_TRUE(first.every_op_is_ok());
  JsonReport again = cluster.ds_install_json({"-l", "--prefix", prefix});
  EXPECT_EQ(again.count("up-to-date"), 1);
  Outcome report = cluster.on_head({prefix + "/current/bin/ds-report"});
  EXPECT_EQ(report.exit_code, 0) << report.out;
}

TEST(Local, Without_a_hostfile_this_machine_is_meant_and_said) {
  DSI_CLUSTER(cluster, 1);
  std::string prefix = cluster.folder() + "/prefix";
  Outcome run = cluster.on_head({DSI_PROGRAM, "-r", "--prefix", prefix, "--ops", "cpu_lion"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("there is no /job/hostfile, so this machine only"));
  Outcome missing = cluster.on_head({DSI_PROGRAM, "-r", "-H", "/nonexistent/hostfile"});
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_THAT(missing.err, HasSubstr("/nonexistent/hostfile"));
}

TEST(Local, Root_must_be_asked_for) {
  DSI_CLUSTER(cluster, 1);
  Outcome run = cluster.on_head({DSI_PROGRAM, "-l", "--prefix", cluster.folder() + "/prefix"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, AllOf(StartsWith("error: "), HasSubstr("-r")));
}

}  // namespace
}  // namespace dsi

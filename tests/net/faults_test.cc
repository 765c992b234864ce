// Hosts that are broken in ways of their own, beside hosts that are not.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/net/cluster.h"

namespace dsi {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string what(const JsonReport& report, const std::string& host) {
  const nlohmann::json& row = report.host(host);
  return row.contains("error") ? row.at("error").value("what", "") : "";
}

std::string help(const JsonReport& report, const std::string& host) {
  const nlohmann::json& row = report.host(host);
  return row.contains("error") ? row.at("error").value("help", "") : "";
}

TEST(Faults, Four_broken_hosts_have_each_their_error_and_the_others_are_installed) {
  DSI_CLUSTER(cluster, 8);
  JsonReport before = cluster.ds_install_json({"--ops", "cpu_lion"});
  ASSERT_EQ(before.exit_code, 0) << before.err;
  std::string old_release = before.host("node003").value("to", "");

  ASSERT_EQ(cluster.control({"kill-sshd", "2"}).exit_code, 0);
  ASSERT_EQ(cluster.control({"fill", "3"}).exit_code, 0);
  ASSERT_EQ(cluster.control({"blackhole", "4"}).exit_code, 0);
  ASSERT_EQ(cluster.control({"rekey", "5"}).exit_code, 0);
  JsonReport report = cluster.ds_install_json({"--connect-timeout", "4"});
  EXPECT_EQ(report.exit_code, 1) << report.err;
  for (const char* host : {"node001", "node006", "node007", "node008"}) {
    EXPECT_EQ(report.host(host).value("result", ""), "installed") << host << what(report, host);
  }
  EXPECT_EQ(report.host("node002").value("result", ""), "unreachable");
  EXPECT_THAT(what(report, "node002"), HasSubstr("refused"));
  EXPECT_EQ(report.host("node003").value("result", ""), "failed");
  EXPECT_THAT(what(report, "node003"), AnyOf(HasSubstr("space"), HasSubstr("free")));
  EXPECT_THAT(help(report, "node003"), Not(HasSubstr("report it")));
  EXPECT_EQ(report.host("node004").value("result", ""), "unreachable");
  EXPECT_THAT(what(report, "node004"), HasSubstr("4 s"));
  EXPECT_EQ(report.host("node005").value("result", ""), "failed");
  EXPECT_THAT(what(report, "node005"), HasSubstr("key"));
  EXPECT_THAT(what(report, "node005"), HasSubstr("SHA256:"));

  // Where an old release was, it still runs.
  for (int node : {2, 3, 4, 5}) {
    EXPECT_EQ(cluster.on_node(node, "readlink /opt/ds-ops/current").out,
              "releases/" + old_release + "\n");
    EXPECT_EQ(cluster.on_node(node, "/opt/ds-ops/current/bin/ds-report").exit_code, 0) << node;
  }
  Outcome person = cluster.ds_install({"--connect-timeout", "4"});
  EXPECT_EQ(person.exit_code, 1);
  EXPECT_THAT(person.out, HasSubstr("node004"));
}

TEST(Faults, A_host_without_room_gets_nothing_at_first_contact) {
  DSI_CLUSTER(cluster, 2);
  ASSERT_EQ(cluster.control({"opt-size", "1", "256k"}).exit_code, 0);
  JsonReport seen = cluster.ds_install_json({});
  EXPECT_EQ(seen.exit_code, 1);
  EXPECT_EQ(seen.host("node002").value("result", ""), "installed");
  EXPECT_EQ(seen.host("node001").value("result", ""), "refused");
  EXPECT_NE(cluster.on_node(1, "test -e /opt/ds-ops").exit_code, 0);

  // And where nobody looked, or the space went after the look.
  JsonReport report = cluster.ds_install_json({"--ignore", "no-space"});
  EXPECT_EQ(report.exit_code, 1);
  EXPECT_EQ(report.host("node001").value("result", ""), "failed");
  EXPECT_THAT(what(report, "node001"), HasSubstr("space"));
  EXPECT_NE(cluster.on_node(1, "test -e /opt/ds-ops/current").exit_code, 0);
}

TEST(Faults, A_host_that_vanishes_while_it_is_installed_is_reported_in_time) {
  DSI_CLUSTER(cluster, 2);
  ASSERT_EQ(cluster.ds_install({"--ops", "cpu_lion"}).exit_code, 0);
  ASSERT_EQ(cluster.control({"unplug", "1"}).exit_code, 0);
  JsonReport report = cluster.ds_install_json({"--connect-timeout", "2"});
  EXPECT_EQ(report.exit_code, 1);
  EXPECT_EQ(report.host("node001").value("result", ""), "unreachable");
  EXPECT_EQ(report.host("node002").value("result", ""), "installed");
  EXPECT_LT(report.summary().at("seconds").get<double>(), 60);
}

class LoginShell : public ::testing::TestWithParam<const char*> {};

TEST_P(LoginShell, May_be_any) {
  DSI_CLUSTER(cluster, 2);
  std::string shell = GetParam();
  if (shell == "noisy") {
    ASSERT_EQ(cluster.control({"noisy", "1"}).exit_code, 0);
  } else {
    ASSERT_EQ(cluster.control({"node-shell", "1", shell}).exit_code, 0);
  }
  JsonReport first = cluster.ds_install_json({"--ops", "cpu_lion"});
  EXPECT_EQ(first.host("node001").value("result", ""), "installed") << what(first, "node001");
  JsonReport second = cluster.ds_install_json({"--ops", "cpu_lion"});
  EXPECT_EQ(second.host("node001").value("result", ""), "up-to-date") << what(second, "node001");
  EXPECT_TRUE(second.every_op_is_ok());
}

INSTANTIATE_TEST_SUITE_P(Shells, LoginShell,
                         ::testing::Values("noisy", "/usr/bin/fish", "/bin/tcsh", "/bin/dash"),
                         [](const auto& shell) {
                           std::string name = shell.param;
                           return name.substr(name.rfind('/') + 1);
                         });

TEST(Faults, A_user_who_may_not_log_in_is_told_what_the_host_says) {
  DSI_CLUSTER(cluster, 1);
  ASSERT_EQ(cluster.control({"node-shell", "1", "/usr/sbin/nologin"}).exit_code, 0);
  JsonReport report = cluster.ds_install_json({"--ops", "cpu_lion"});
  EXPECT_EQ(report.host("node001").value("result", ""), "failed");
  EXPECT_THAT(what(report, "node001"), HasSubstr("not available"));
}

TEST(Faults, Nothing_needs_an_executable_tmp) {
  DSI_CLUSTER(cluster, 1);
  ASSERT_EQ(cluster.control({"noexec-tmp", "1"}).exit_code, 0);
  JsonReport report = cluster.ds_install_json({"--ops", "cpu_lion"});
  EXPECT_EQ(report.exit_code, 0) << report.err << what(report, "node001");
  EXPECT_TRUE(report.every_op_is_ok());
}

TEST(Faults, A_umask_of_077_makes_no_release_that_others_cannot_read) {
  DSI_CLUSTER(cluster, 1);
  cluster.on_node(1, "echo 'umask 077' >> /root/.bashrc; echo 'umask 077' >> /root/.profile");
  JsonReport report = cluster.ds_install_json({"--ops", "cpu_lion"});
  EXPECT_EQ(report.exit_code, 0) << report.err;
  EXPECT_EQ(cluster.on_node(1, "find /opt/ds-ops/releases ! -perm -004 | head -1").out, "");
  EXPECT_EQ(
      cluster.on_node(1, "setpriv --reuid dsuser --clear-groups /opt/ds-ops/current/bin/ds-report")
          .exit_code,
      0);
}

TEST(Faults, A_user_without_root_installs_at_home) {
  DSI_CLUSTER(cluster, 2);
  std::string hostfile = cluster.write_hostfile("dsuser@node001\ndsuser@node002\n");
  JsonReport report = cluster.ds_install_json({"-H", hostfile, "--ops", "cpu_lion"});
  EXPECT_EQ(report.exit_code, 0) << report.err << what(report, "node001");
  EXPECT_TRUE(report.every_op_is_ok());
  EXPECT_EQ(cluster.on_node(1, "test -e /home/dsuser/.local/share/ds-ops/current").exit_code, 0);
  // Where the user may not write, that is what is said.
  JsonReport refused =
      cluster.ds_install_json({"-H", hostfile, "--ops", "cpu_lion", "--prefix", "/usr/lib/ds-ops"});
  EXPECT_EQ(refused.exit_code, 4);
  EXPECT_THAT(what(refused, "node001"), HasSubstr("dsuser may not write /usr/lib"));
  EXPECT_THAT(help(refused, "node001"), HasSubstr("--prefix"));
  JsonReport failed =
      cluster.ds_install_json({"-H", hostfile, "--ops", "cpu_lion", "--prefix", "/usr/lib/ds-ops",
                               "--ignore", "prefix-not-writable"});
  EXPECT_EQ(failed.exit_code, 1);
  EXPECT_THAT(what(failed, "node001"), HasSubstr("ermission denied"));
  EXPECT_THAT(help(failed, "node001"), HasSubstr("--prefix"));
}

TEST(Faults, An_agent_killed_while_it_works_leaves_the_old_release_and_the_next_run_succeeds) {
  DSI_CLUSTER(cluster, 2);
  JsonReport before = cluster.ds_install_json({"--ops", "cpu_lion"});
  ASSERT_EQ(before.exit_code, 0) << before.err;
  std::string old_release = before.host("node001").value("to", "");
  // Whatever stage it is in: killed as soon as it is seen, again and again, while installs go on.
  cluster.on_node(1,
                  "nohup sh -c 'while :; do pkill -9 -f \"store/.* serve\" ; sleep 0.02; done' "
                  ">/dev/null 2>&1 & echo $! > /tmp/killer");
  for (int i = 0; i < 3; ++i) {
    JsonReport report = cluster.ds_install_json({});
    EXPECT_EQ(what(report, "node002"), "");
    std::string current = cluster.on_node(1, "readlink /opt/ds-ops/current").out;
    std::string wanted = report.host("node002").value("to", "");
    EXPECT_THAT(current, AnyOf("releases/" + old_release + "\n", "releases/" + wanted + "\n"));
    EXPECT_EQ(cluster.on_node(1, "/opt/ds-ops/current/bin/ds-report").exit_code, 0);
  }
  cluster.on_node(1, "kill $(cat /tmp/killer); pkill -f 'while :'; true");
  JsonReport after = cluster.ds_install_json({});
  EXPECT_EQ(after.exit_code, 0) << after.err << what(after, "node001");
  EXPECT_TRUE(after.every_op_is_ok());
}

TEST(Faults, An_old_agent_that_was_cut_short_is_replaced) {
  DSI_CLUSTER(cluster, 1);
  ASSERT_EQ(cluster.ds_install({"--ops", "cpu_lion"}).exit_code, 0);
  cluster.on_node(1, "for f in /opt/ds-ops/store/*.x; do truncate -s 1000 $f; done");
  JsonReport report = cluster.ds_install_json({"--ops", "cpu_lion"});
  EXPECT_EQ(report.exit_code, 0) << report.err << what(report, "node001");
  EXPECT_TRUE(report.every_op_is_ok());
}

TEST(Faults, The_same_machine_under_two_names_is_installed_once_and_both_rows_say_so) {
  DSI_CLUSTER(cluster, 1);
  std::string address = cluster.control({"ip", "1"}).out;
  address.erase(address.find_last_not_of('\n') + 1);
  std::string hostfile = cluster.write_hostfile("node001\n" + address + "\n");
  JsonReport report = cluster.ds_install_json({"-H", hostfile, "--ops", "cpu_lion"});
  EXPECT_EQ(report.exit_code, 0) << report.err << what(report, "node001") << what(report, address);
  EXPECT_EQ(report.count("installed"), 1);
  EXPECT_EQ(report.count("up-to-date"), 1);
}

TEST(Faults, A_bad_hostfile_gives_all_its_errors_at_once) {
  DSI_CLUSTER(cluster, 1);
  std::string hostfile = cluster.write_hostfile("node001\n-oProxyCommand=x\nnode[1-\n");
  Outcome run = cluster.ds_install({"-H", hostfile});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr(hostfile + ":2:1: error: "));
  EXPECT_THAT(run.err, HasSubstr(hostfile + ":3:"));
}

TEST(Interrupt, Once_finishes_what_is_in_flight_and_tells_of_the_rest) {
  DSI_CLUSTER(cluster, 4);
  std::string bundle = cluster.folder() + "/ops.tar.zst";
  ASSERT_EQ(cluster.on_head({DSI_PROGRAM, "build", "-o", bundle}).exit_code, 0);
  // One host at a time (a swarm takes all at once), and a stop while the first is at work.
  Outcome run = cluster.on_head({"timeout", "--preserve-status", "-s", "INT", "1.5", DSI_PROGRAM,
                                 "-r", "-v", "--fanout", "1", "--topology", "star", "--bundle",
                                 bundle, "-H", cluster.default_hostfile()});
  EXPECT_EQ(run.exit_code, 130) << run.out << run.err;
  EXPECT_THAT(run.err, HasSubstr("Press ^C again"));
  EXPECT_THAT(run.out, HasSubstr("not-tried"));
  for (int node = 1; node <= 4; ++node) {
    // Whole or not at all.
    if (cluster.on_node(node, "test -e /opt/ds-ops/current").exit_code == 0) {
      EXPECT_EQ(cluster.on_node(node, "/opt/ds-ops/current/bin/ds-report").exit_code, 0);
    }
  }
  EXPECT_EQ(cluster.ds_install({"--bundle", bundle}).exit_code, 0);
}

TEST(Interrupt, Twice_aborts_and_no_host_is_left_half_way) {
  DSI_CLUSTER(cluster, 2);
  std::string bundle = cluster.folder() + "/ops.tar.zst";
  ASSERT_EQ(cluster.on_head({DSI_PROGRAM, "build", "-o", bundle}).exit_code, 0);
  ASSERT_EQ(cluster.ds_install({"--ops", "cpu_lion"}).exit_code, 0);
  std::string old_release = cluster.on_node(1, "readlink /opt/ds-ops/current").out;
  // A host that stands still in the middle: only the second signal ends it.
  ASSERT_EQ(cluster.on_node(2, "pkill -STOP sshd; true").exit_code, 0);
  Outcome run = cluster.on_head(
      {"sh", "-c",
       "\"$@\" & pid=$!; sleep 2; kill -TERM $pid; sleep 0.5; kill -TERM $pid; wait $pid", "sh",
       DSI_PROGRAM, "-r", "--connect-timeout", "60", "--bundle", bundle, "-H",
       cluster.default_hostfile()});
  EXPECT_EQ(run.exit_code, 130) << run.out << run.err;
  cluster.on_node(2, "pkill -CONT sshd; true");
  EXPECT_EQ(cluster.on_node(2, "readlink /opt/ds-ops/current").out, old_release);
  EXPECT_EQ(cluster.ds_install({"--bundle", bundle}).exit_code, 0);
}

}  // namespace
}  // namespace dsi

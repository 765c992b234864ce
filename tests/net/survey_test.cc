// Hosts that differ, and hosts that cannot take what is asked for, on real ones.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/net/cluster.h"

namespace dsi {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kInstalled[] = "ls -d /opt/ds-ops 2>/dev/null";

// Nothing in /opt can be executed.
void mount_noexec(Cluster& cluster, int node) {
  ASSERT_EQ(cluster.on_node(node, "mount -t tmpfs -o noexec dsi-opt /opt").exit_code, 0);
}

// The loader finds a C++ library of 2014 first.
void age_the_cxx_library(Cluster& cluster, int node) {
  Outcome aged = cluster.on_node(
      node, "mkdir -p /usr/local/lib/old && cp '" DSI_OLD_LIBSTDCXX
            "' /usr/local/lib/old/ && echo /usr/local/lib/old >/etc/ld.so.conf.d/00-old.conf && "
            "/sbin/ldconfig");
  ASSERT_EQ(aged.exit_code, 0) << aged.err;
}

TEST(Survey, Hosts_that_cannot_take_it_are_refused_untouched_and_the_others_get_it) {
  DSI_CLUSTER(cluster, 4);
  mount_noexec(cluster, 2);
  age_the_cxx_library(cluster, 3);
  ASSERT_EQ(cluster.control({"opt-size", "4", "64k"}).exit_code, 0);

  Outcome survey = cluster.ds_install({"survey"});
  EXPECT_EQ(survey.exit_code, 0) << survey.err;
  EXPECT_THAT(survey.out, AllOf(HasSubstr("4 hosts in "), HasSubstr("What differs:"),
                                HasSubstr("3.4.20  node003"),
                                HasSubstr("An install would be refused:\nnode002: nothing in "
                                          "/opt/ds-ops can be executed or loaded")));

  JsonReport some = cluster.ds_install_json({"--ops", "cpu_lion"});
  EXPECT_EQ(some.exit_code, 1) << some.err;
  EXPECT_EQ(some.count("installed"), 1);
  EXPECT_EQ(some.count("refused"), 3);
  EXPECT_EQ(some.host("node001").value("result", ""), "installed");
  EXPECT_TRUE(some.every_op_is_ok());
  auto reason = [&](const char* host) { return some.host(host).at("error").value("what", ""); };
  EXPECT_THAT(reason("node002"), HasSubstr("[prefix-noexec]"));
  EXPECT_THAT(reason("node003"), AllOf(HasSubstr("cpu_lion needs a newer C++ library"),
                                       HasSubstr("found GLIBCXX_3.4.20 in /usr/local/lib/old/"),
                                       HasSubstr("[libstdcxx-too-old]")));
  EXPECT_THAT(reason("node004"),
              AllOf(HasSubstr("required "), HasSubstr("found 64.0 KiB"), HasSubstr("[no-space]")));
  for (int node : {2, 3, 4}) EXPECT_EQ(cluster.on_node(node, kInstalled).out, "") << node;
  // And nothing of the look is left anywhere else.
  for (int node : {1, 2, 3, 4}) {
    EXPECT_EQ(cluster.on_node(node, "ls -A /tmp /dev/shm /var/tmp | grep ds-look").out, "");
  }

  // Now it is known what the ops need, so a plan says it without a build.
  Outcome plan = cluster.ds_install({"plan", "--ops", "cpu_lion"});
  EXPECT_EQ(plan.exit_code, 1);
  EXPECT_THAT(plan.out, AllOf(HasSubstr("node003 (1 host): refused: cpu_lion needs"),
                              HasSubstr("node004 (1 host): refused: there is not enough space"),
                              HasSubstr("node001 (1 host): already there")));
}

TEST(Survey, If_all_are_refused_the_exit_code_is_4_and_no_host_is_touched) {
  DSI_CLUSTER(cluster, 2);
  mount_noexec(cluster, 1);
  age_the_cxx_library(cluster, 2);
  JsonReport none = cluster.ds_install_json({"--ops", "cpu_lion"});
  EXPECT_EQ(none.exit_code, 4) << none.err;
  EXPECT_EQ(none.count("refused"), 2);
  EXPECT_EQ(none.summary().value("exit_code", -1), 4);
  for (int node : {1, 2}) EXPECT_EQ(cluster.on_node(node, kInstalled).out, "") << node;
}

// The agent is there before anything is compiled, and must not be seen afterwards.
TEST(Survey, If_nothing_can_be_built_no_host_is_touched) {
  DSI_CLUSTER(cluster, 3);
  std::string op = cluster.folder() + "/ops/broken";
  ASSERT_EQ(cluster
                .on_head({"sh", "-c",
                          "mkdir -p \"$0\" && cd \"$0\" && echo \"#error no\" >broken.cpp && "
                          "echo \"$1\" >op.json",
                          op,
                          R"({"name": "broken", "description": "d", "capability": "op.broken",
                              "devices": ["cpu"], "sources": ["broken.cpp"],
                              "library": "ds_broken"})"})
                .exit_code,
            0);
  Outcome run = cluster.ds_install({"--ops-dir", cluster.folder() + "/ops", "--ops", "broken"});
  EXPECT_EQ(run.exit_code, 3) << run.out << run.err;
  for (int node : {1, 2, 3}) {
    EXPECT_EQ(cluster.on_node(node, kInstalled).out, "") << node;
    EXPECT_EQ(cluster.on_node(node, "ls -A /tmp /dev/shm /var/tmp | grep ds-look").out, "");
    // It leaves at the end of its input, which the head's end is.
    Outcome left;
    for (int i = 0; i < 300; ++i) {
      left = cluster.control({"agents", std::to_string(node)});
      if (left.out.empty()) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    EXPECT_EQ(left.out, "") << node;
  }
}

TEST(Survey, Hosts_on_which_nothing_but_the_prefix_runs_programs_are_installed) {
  DSI_CLUSTER(cluster, 2);
  ASSERT_EQ(cluster
                .on_node(2,
                         "for d in /tmp /dev/shm /var/tmp /root /run; do mount --bind $d $d && "
                         "mount -o remount,bind,noexec $d || exit 1; done")
                .exit_code,
            0);
  JsonReport run = cluster.ds_install_json({"--ops", "cpu_lion"});
  EXPECT_EQ(run.count("installed"), 2) << run.err;
}

TEST(Survey, Who_ignores_a_rule_gets_the_release_and_the_record_says_so) {
  DSI_CLUSTER(cluster, 1);
  age_the_cxx_library(cluster, 1);
  JsonReport run = cluster.ds_install_json(
      {"--ops", "cpu_lion", "--ignore", "libstdcxx-too-old,cxxabi-too-old"});
  EXPECT_EQ(run.count("installed"), 1) << run.err;
  Outcome plan =
      cluster.on_head({"sh", "-c", "cat \"$XDG_STATE_HOME\"/ds-install/runs/*/plan.json"});
  EXPECT_THAT(plan.out,
              HasSubstr("\"ignored\": [\n  \"cxxabi-too-old\",\n  \"libstdcxx-too-old\"\n ]"));

  JsonReport wrong = cluster.ds_install_json({"--ignore", "libstdcxx-to-old"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("did you mean libstdcxx-too-old?"));
}

TEST(Survey, A_site_adds_rules_of_its_own) {
  DSI_CLUSTER(cluster, 2);
  ASSERT_EQ(cluster.control({"node-shell", "2", "/bin/sh"}).exit_code, 0);
  std::string rules = cluster.write_hostfile(
      "- id: no-plain-sh\n  when: {node.shell: {is: /bin/sh}}\n  severity: refuse\n"
      "  message: \"{node.user} has a plain shell\"\n  required: bash\n  found: "
      "\"{node.shell}\"\n");
  JsonReport run = cluster.ds_install_json({"--ops", "cpu_lion", "--rules", rules});
  EXPECT_EQ(run.exit_code, 1) << run.err;
  EXPECT_EQ(run.host("node001").value("result", ""), "installed");
  EXPECT_EQ(run.host("node002").at("error").value("what", ""),
            "root has a plain shell (required bash, found /bin/sh) [no-plain-sh]");

  std::string typing = cluster.write_hostfile("- id: x\n  when: {node.shel: {is: /bin/sh}}\n");
  JsonReport wrong = cluster.ds_install_json({"--rules", typing});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr(":2:10: error: there is no field node.shel"));
}

TEST(Survey, JSON_has_the_facts_of_hosts_and_the_reasons_of_those_that_do_not_answer) {
  DSI_CLUSTER(cluster, 3);
  ASSERT_EQ(cluster.control({"kill-sshd", "3"}).exit_code, 0);
  ASSERT_EQ(cluster.control({"noisy", "2"}).exit_code, 0);
  JsonReport survey = cluster.ds_install_json({"survey"});
  EXPECT_EQ(survey.exit_code, 1);
  EXPECT_EQ(survey.host("node001").at("facts").value("host_name", ""), "node001");
  EXPECT_EQ(survey.host("node002").at("facts").at("libc").value("name", ""), "glibc");
  EXPECT_EQ(survey.host("node003").value("result", ""), "unreachable");
  EXPECT_EQ(survey.summary().value("groups", 0), 1);
  EXPECT_THAT(survey.err, Not(HasSubstr("error:")));
}

}  // namespace
}  // namespace dsi

// A Python package on real hosts that each have an environment of their own, and what install.sh
// does in the same place (DeepSpeed's script; what it does is named where a test begins).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/net/cluster.h"

namespace dsi {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kSay[] =
    "/opt/env/bin/python -I -B -c 'import greet, greet.ops.adder_op as op; "
    "print(greet.VERSION, op.value())'";

class Package : public ::testing::Test {
 protected:
  // Wheels of versions 1.0 and 2.0, built by setuptools as anyone's are.
  static void SetUpTestSuite() {
    wheels_ = fs::path(DSI_TEST_FOLDER) / ("wheels" + std::to_string(::getpid()));
    fs::create_directories(wheels_);
    for (const char* version : {"1.0", "2.0"}) {
      std::string command = "/usr/bin/python3 '" + std::string(DSI_SOURCE_FOLDER) +
                            "/tests/package/greet.py' '" + wheels_.string() + "' " + version +
                            " >/dev/null";
      ASSERT_EQ(std::system(command.c_str()), 0) << command;
    }
  }
  static void TearDownTestSuite() { fs::remove_all(wheels_); }

  static std::string wheel(const std::string& version) {
    for (const auto& entry : fs::directory_iterator(wheels_ / ("wheel-" + version))) {
      return entry.path();
    }
    return {};
  }

  // Another wheel, in the test's own folder.
  static std::string build_wheel(Cluster& cluster, const std::string& version,
                                 const std::string& ops, const std::string& requires_these,
                                 const std::string& name = "greet") {
    std::string command = "/usr/bin/python3 '" + std::string(DSI_SOURCE_FOLDER) +
                          "/tests/package/greet.py' '" + cluster.folder() + "/" + name + "' " +
                          version + " " + ops + " '" + requires_these + "' " + name + " >/dev/null";
    fs::create_directories(cluster.folder() + "/" + name);
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
    for (const auto& entry :
         fs::directory_iterator(cluster.folder() + "/" + name + "/wheel-" + version)) {
      return entry.path();
    }
    return {};
  }

  // /opt/env on each of the hosts, with version 1.0 that pip has put there. It sees the system's
  // packages, pip among them: that is quick.
  static void make_environments(Cluster& cluster, int hosts, bool with_old = true) {
    for (int node = 1; node <= hosts; ++node) {
      Outcome made =
          cluster.on_node(node,
                          "mkdir -p /opt && cd / && /usr/bin/python3 -m venv --without-pip "
                          "--system-site-packages /opt/env");
      ASSERT_EQ(made.exit_code, 0) << made.err;
      if (with_old) {
        made =
            cluster.on_node(node, "/opt/env/bin/python -I -m pip install --no-index --no-deps '" +
                                      wheel("1.0") + "'");
        ASSERT_EQ(made.exit_code, 0) << made.err << made.out;
      }
    }
  }

  // The interpreter of the hosts is not one of this machine, so each host has it in the
  // configuration.
  static std::vector<std::string> with_config(Cluster& cluster, int hosts,
                                              std::vector<std::string> arguments) {
    std::string path = cluster.folder() + "/site.yaml";
    std::ofstream config(path);
    config << "hosts:\n";
    for (int node = 1; node <= hosts; ++node) {
      config << "  node00" << node << ": { python: /opt/env }\n";
    }
    config.close();
    arguments.insert(arguments.end(), {"--config", path});
    return arguments;
  }

  static std::string say(Cluster& cluster, int node) { return cluster.on_node(node, kSay).out; }

  static fs::path wheels_;
};

fs::path Package::wheels_;

std::string what_of(const JsonReport& report, const std::string& host) {
  const auto& row = report.host(host);
  return row.contains("error") ? row.at("error").value("what", "") : "";
}

TEST_F(Package, Three_hosts_get_it_in_their_own_environments_and_go_back_and_lose_it) {
  DSI_CLUSTER(cluster, 3);
  make_environments(cluster, 3);
  JsonReport first = cluster.ds_install_json(with_config(cluster, 3, {"--package", wheel("2.0")}));
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(first.count("installed"), 3) << first.err;
  EXPECT_EQ(first.host("node002").value("from", ""), "greet 1.0");
  EXPECT_TRUE(first.every_op_is_ok());
  for (int node = 1; node <= 3; ++node) EXPECT_EQ(say(cluster, node), "2.0 2.0\n");

  JsonReport again = cluster.ds_install_json(with_config(cluster, 3, {"--package", wheel("2.0")}));
  EXPECT_EQ(again.count("up-to-date"), 3) << again.err;

  JsonReport report =
      cluster.ds_install_json(with_config(cluster, 3, {"report", "--package", "greet"}));
  EXPECT_EQ(report.exit_code, 0) << report.err;
  EXPECT_TRUE(report.every_op_is_ok());

  JsonReport back =
      cluster.ds_install_json(with_config(cluster, 3, {"rollback", "--package", "greet"}));
  EXPECT_EQ(back.exit_code, 0) << back.err;
  EXPECT_EQ(back.host("node003").value("to", ""), "greet 1.0");
  for (int node = 1; node <= 3; ++node) EXPECT_EQ(say(cluster, node), "1.0 1.0\n");

  cluster.ds_install_json(with_config(cluster, 3, {"rollback", "--package", "greet"}));
  JsonReport gone =
      cluster.ds_install_json(with_config(cluster, 3, {"uninstall", "--package", "greet"}));
  EXPECT_EQ(gone.exit_code, 0) << gone.err;
  EXPECT_NE(cluster.on_node(1, kSay).exit_code, 0);
  EXPECT_NE(cluster.on_node(1, "test -e /opt/env/lib/python3*/ds-install").exit_code, 0);
}

// install.sh uninstalls first and checks nothing: each of these hosts would be left with nothing,
// and its exit code would be 0, because pdsh without -S hides what happened.
TEST_F(Package, Hosts_that_cannot_take_it_are_refused_with_a_reason_and_keep_what_they_have) {
  DSI_CLUSTER(cluster, 4);
  make_environments(cluster, 4);
  // A file system that is full, one that is read-only, and no pip at all.
  cluster.on_node(2,
                  "mkdir /run/small && mount -t tmpfs -o size=9m small /run/small && "
                  "cp -a /opt/env/. /run/small/ && mount --move /run/small /opt/env && "
                  "dd if=/dev/zero of=/opt/env/filler bs=64k 2>/dev/null; true");
  cluster.on_node(3, "mount --bind /opt/env /opt/env && mount -o remount,ro,bind /opt/env");
  cluster.on_node(4,
                  "mkdir /run/none && mount --bind /run/none /usr/lib/python3/dist-packages/pip");
  JsonReport report = cluster.ds_install_json(with_config(cluster, 4, {"--package", wheel("2.0")}));
  EXPECT_EQ(report.exit_code, 1) << report.err;
  EXPECT_EQ(report.host("node001").value("result", ""), "installed")
      << what_of(report, "node001") << report.err;
  EXPECT_THAT(what_of(report, "node002"), HasSubstr("free"));
  EXPECT_THAT(what_of(report, "node003"), HasSubstr("read-only"));
  EXPECT_THAT(what_of(report, "node004"), HasSubstr("pip"));
  EXPECT_EQ(say(cluster, 1), "2.0 2.0\n");
  for (int node = 2; node <= 4; ++node) EXPECT_EQ(say(cluster, node), "1.0 1.0\n") << node;
}

// The same hosts under install.sh: uninstalled, installed, and broken at the first import.
TEST_F(Package, A_host_without_torch_and_one_with_an_old_libstdcxx_are_refused) {
  DSI_CLUSTER(cluster, 3);
  make_environments(cluster, 3);
  // Node 2 has no torch: its own pip, and nothing of the system's.
  cluster.on_node(2,
                  "cd / && rm -rf /opt/env && /usr/bin/python3 -m venv /opt/env && "
                  "/opt/env/bin/python -I -m pip install --no-index --no-deps '" +
                      wheel("1.0") + "'");
  // Node 3's libstdc++ says of itself that it is of 2009.
  Outcome faked =
      cluster.on_node(3,
                      "real=$(readlink -f /usr/lib/*-linux-gnu/libstdc++.so.6) && "
                      "sed 's/GLIBCXX_3\\.4\\.[123][0-9]/GLIBCXX_3.4.00/g' $real >/run/fake && "
                      "mount --bind /run/fake $real");
  ASSERT_EQ(faked.exit_code, 0) << faked.err;
  std::string needs_both = build_wheel(cluster, "2.0", "adder_op,cxx_op", "torch");
  JsonReport report = cluster.ds_install_json(with_config(cluster, 3, {"--package", needs_both}));
  EXPECT_EQ(report.exit_code, 1) << report.err;
  EXPECT_EQ(report.host("node001").value("result", ""), "installed")
      << what_of(report, "node001") << report.err;
  EXPECT_THAT(what_of(report, "node002"), HasSubstr("torch"));
  EXPECT_THAT(what_of(report, "node003"), AllOf(HasSubstr("3.4.29"), HasSubstr("3.4.9")));
  EXPECT_EQ(say(cluster, 1), "2.0 2.0\n");
  EXPECT_EQ(say(cluster, 2), "1.0 1.0\n");
  EXPECT_EQ(say(cluster, 3), "1.0 1.0\n");
}

// install.sh would put a wheel for another Python on every host, uninstall the old one there, and
// then have pip refuse it.
TEST_F(Package, A_wheel_for_another_Python_touches_no_host) {
  DSI_CLUSTER(cluster, 2);
  make_environments(cluster, 2);
  fs::path other = cluster.folder() + "/greet-2.0-cp36-cp36m-linux_x86_64.whl";
  fs::copy_file(wheel("2.0"), other);
  JsonReport report =
      cluster.ds_install_json(with_config(cluster, 2, {"--package", other.string()}));
  EXPECT_NE(report.exit_code, 0);
  for (int node = 1; node <= 2; ++node) EXPECT_EQ(say(cluster, node), "1.0 1.0\n");
  EXPECT_NE(cluster.on_node(1, "test -e /opt/ds-ops/packages").exit_code, 0);
}

// install.sh: "Requirement already satisfied" (its issue 283); what is broken stays broken.
TEST_F(Package, The_same_version_again_replaces_what_is_broken) {
  DSI_CLUSTER(cluster, 1);
  make_environments(cluster, 1);
  cluster.on_node(1,
                  "echo 'VERSION = \"altered\"' >/opt/env/lib/python3*/site-packages/greet/"
                  "__init__.py; sh -c 'echo VERSION=0 > $0' "
                  "$(echo /opt/env/lib/python3*/site-packages/greet/__init__.py)");
  ASSERT_NE(say(cluster, 1), "1.0 1.0\n");
  JsonReport report = cluster.ds_install_json(with_config(cluster, 1, {"--package", wheel("1.0")}));
  EXPECT_EQ(report.exit_code, 0) << report.err;
  EXPECT_EQ(say(cluster, 1), "1.0 1.0\n");
}

// install.sh reads the hostfile with awk: a comment is a host named "#", an empty line an empty
// host, and of CRLF the host's name keeps the CR.
TEST_F(Package, A_hostfile_with_comments_and_carriage_returns_names_the_hosts_that_it_means) {
  DSI_CLUSTER(cluster, 2);
  make_environments(cluster, 2);
  std::string hostfile =
      cluster.write_hostfile("# a comment\r\n\r\nnode001 slots=8\r\nnode002 slots=8 # last\r\n");
  JsonReport report =
      cluster.ds_install_json(with_config(cluster, 2, {"--package", wheel("2.0"), "-H", hostfile}));
  EXPECT_EQ(report.exit_code, 0) << report.err;
  EXPECT_EQ(report.count("installed"), 2);
}

// pdcp overwrites files in place: what a running program has mapped changes under it.
TEST_F(Package, A_program_that_runs_keeps_the_module_that_it_has_loaded) {
  DSI_CLUSTER(cluster, 1);
  make_environments(cluster, 1);
  Outcome start = cluster.on_node(
      1,
      "cd / && (setsid /opt/env/bin/python -I -B -c '\n"
      "import time, greet.ops.adder_op as op\n"
      "open(\"/tmp/ready\", \"w\").close()\n"
      "import os\n"
      "while not os.path.exists(\"/tmp/go\"): time.sleep(0.05)\n"
      "open(\"/tmp/said\", \"w\").write(op.value())\n"
      "' </dev/null >/dev/null 2>&1 &) ; while ! test -e /tmp/ready; do sleep 0.05; done");
  ASSERT_EQ(start.exit_code, 0) << start.err;
  JsonReport report = cluster.ds_install_json(with_config(cluster, 1, {"--package", wheel("2.0")}));
  EXPECT_EQ(report.exit_code, 0) << report.err;
  Outcome said = cluster.on_node(
      1, "touch /tmp/go; while ! test -s /tmp/said; do sleep 0.05; done; cat /tmp/said");
  EXPECT_EQ(said.out, "1.0");
  EXPECT_EQ(say(cluster, 1), "2.0 2.0\n");
}

// install.sh runs a bare "pip" over SSH: the one of a shell that is no login, so of another Python
// than the user's.
TEST_F(Package, The_environment_that_a_login_activates_is_the_one_that_gets_it) {
  DSI_CLUSTER(cluster, 1);
  make_environments(cluster, 1);
  cluster.on_node(1, "echo 'export PATH=/opt/env/bin:$PATH' >/root/.bash_profile");
  JsonReport report = cluster.ds_install_json({"--package", wheel("2.0")});
  EXPECT_EQ(report.exit_code, 0) << report.err;
  EXPECT_EQ(say(cluster, 1), "2.0 2.0\n");
}

// Once it has begun to exchange the package a host goes on by itself, and is asked what it came to.
TEST_F(Package, A_connection_that_is_lost_in_the_switch_is_no_failure_if_the_host_was_done) {
  DSI_CLUSTER(cluster, 2);
  make_environments(cluster, 2);
  // Every Python that is started in the middle of the switch waits for /tmp/go.
  Outcome made = cluster.on_node(
      1,
      "cd /opt/env/lib/python3*/ && echo \"import os, time; exec(\\\"while os.path.exists('$PWD/"
      "ds-install/journal.phase') and not os.path.exists('/tmp/go'): time.sleep(0.05)\\\")\" "
      ">site-packages/wait.pth");
  ASSERT_EQ(made.exit_code, 0) << made.err;
  auto arguments = with_config(cluster, 2, {"--package", wheel("2.0")});
  JsonReport report;
  std::thread run([&] { report = cluster.ds_install_json(arguments); });
  Outcome waits = cluster.on_node(
      1,
      "i=0; while ! test -e /opt/env/lib/python3*/ds-install/journal.phase && test $i -lt 1200; do "
      "sleep 0.1; i=$((i+1)); done; test $i -lt 1200");
  EXPECT_EQ(waits.exit_code, 0);
  EXPECT_EQ(cluster.control({"kill-agent", "1"}).exit_code, 0);
  cluster.on_node(1, "touch /tmp/go");
  run.join();
  EXPECT_EQ(report.exit_code, 0) << report.err;
  EXPECT_EQ(report.count("installed"), 2) << what_of(report, "node001");
  EXPECT_TRUE(report.every_op_is_ok());
  EXPECT_EQ(say(cluster, 1), "2.0 2.0\n");
}

// The same for what takes a package away: all that is to go out is out, and nothing is written yet
// that says so.
TEST_F(Package, A_connection_that_is_lost_in_a_rollback_or_an_uninstall_does_not_hide_the_outcome) {
  DSI_CLUSTER(cluster, 1);
  make_environments(cluster, 1);
  JsonReport first = cluster.ds_install_json(with_config(cluster, 1, {"--package", wheel("2.0")}));
  ASSERT_EQ(first.exit_code, 0) << first.err;
  // Every Python of the environment waits before it renames a file of this name.
  cluster.on_node(1,
                  "cat >$(echo /opt/env/lib/python3*/site-packages)/wait.pth <<'END'\n"
                  "import sys; exec(\"def wait(event, words):\\n"
                  " if event == 'os.rename' and str(words[0]).endswith('/state.json.next'):\\n"
                  "  import os, time; open('/tmp/waits', 'w').close()\\n"
                  "  while not os.path.exists('/tmp/go'): time.sleep(0.05)\\n"
                  "sys.addaudithook(wait)\")\nEND");
  for (const std::string action : {"rollback", "uninstall"}) {
    cluster.on_node(1, "rm -f /tmp/waits /tmp/go");
    auto arguments = with_config(cluster, 1, {action, "--package", "greet"});
    JsonReport report;
    std::thread run([&] { report = cluster.ds_install_json(arguments); });
    Outcome waits = cluster.on_node(
        1,
        "i=0; while ! test -e /tmp/waits && test $i -lt 600; do sleep 0.1; i=$((i+1)); done; "
        "test -e /tmp/waits");
    EXPECT_EQ(waits.exit_code, 0) << action;
    EXPECT_EQ(cluster.control({"kill-agent", "1"}).exit_code, 0);
    cluster.on_node(1, "sleep 0.5; touch /tmp/go");
    run.join();
    EXPECT_EQ(report.exit_code, 0) << action << report.err << what_of(report, "node001");
    EXPECT_EQ(report.count(action == "rollback" ? "rolled-back" : "uninstalled"), 1) << report.err;
    if (action == "rollback") {
      EXPECT_EQ(say(cluster, 1), "1.0 1.0\n");
      // That one is pip's; what is taken away is ours.
      cluster.on_node(1, "touch /tmp/go");
      report = cluster.ds_install_json(with_config(cluster, 1, {"--package", wheel("2.0")}));
      EXPECT_EQ(report.exit_code, 0) << report.err;
    } else {
      EXPECT_EQ(say(cluster, 1), "");
    }
  }
}

// A node that dies under install.sh has lost the old package.
TEST_F(Package, An_agent_that_is_killed_in_the_middle_leaves_the_old_and_the_next_run_succeeds) {
  DSI_CLUSTER(cluster, 2);
  make_environments(cluster, 2);
  // Its import waits for a file, so that there is a middle.
  std::string build = "cd '" + cluster.folder() +
                      "' && /usr/bin/python3 -c \"import sys; "
                      "sys.path.insert(0, '" +
                      std::string(DSI_SOURCE_FOLDER) +
                      "/tests/package'); import greet; print(greet.build_wheel('.', '3.0', "
                      "extra='import os, time\\nif os.path.exists(\\'/tmp/wait\\'): "
                      "open(\\'/tmp/waits\\', \\'w\\').close()\\nwhile os.path.exists("
                      "\\'/tmp/wait\\'): time.sleep(0.05)'))\"";
  ASSERT_EQ(std::system((build + " >/dev/null").c_str()), 0);
  std::string slow;
  for (const auto& entry : fs::directory_iterator(cluster.folder() + "/wheel-3.0")) {
    slow = entry.path();
  }
  cluster.on_node(1, "touch /tmp/wait");
  auto arguments = with_config(cluster, 2, {"--package", slow});
  JsonReport report;
  std::thread run([&] { report = cluster.ds_install_json(arguments); });
  Outcome waits = cluster.on_node(
      1,
      "i=0; while ! test -e /tmp/waits && test $i -lt 1200; do sleep 0.1; i=$((i+1)); done; "
      "test -e /tmp/waits");
  EXPECT_EQ(waits.exit_code, 0);
  EXPECT_EQ(cluster.control({"kill-agent", "1"}).exit_code, 0);
  run.join();
  EXPECT_EQ(report.exit_code, 1);
  EXPECT_EQ(report.host("node002").value("result", ""), "installed") << report.err;
  EXPECT_EQ(report.host("node001").value("result", ""), "failed");
  cluster.on_node(1,
                  "rm -f /tmp/wait; i=0; while test -e /opt/env/lib/python3*/ds-install && "
                  "test $i -lt 600; do sleep 0.1; i=$((i+1)); done");
  EXPECT_EQ(say(cluster, 1), "1.0 1.0\n");
  JsonReport again = cluster.ds_install_json(arguments);
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(say(cluster, 1), "3.0 3.0\n");
}

// install.sh needs pdcp on every host, and says nothing where there is none. With it the pip of
// each node asks an index, and a node that reaches none fails after its old package is gone.
TEST_F(Package, Hosts_need_no_pdcp_and_no_index_whatever_their_pip_is_told) {
  DSI_CLUSTER(cluster, 1);
  make_environments(cluster, 1);
  cluster.on_node(1,
                  "for p in /usr/bin/pdcp /usr/bin/pdsh; do "
                  "test ! -e $p || mount --bind /dev/null $p; done");
  // Whatever pip's settings on the host say: an index that nobody can reach.
  cluster.on_node(1,
                  "printf '[global]\\nindex-url = http://10.255.255.1/simple\\n' "
                  ">/etc/pip.conf");
  JsonReport report = cluster.ds_install_json(with_config(cluster, 1, {"--package", wheel("2.0")}));
  EXPECT_EQ(report.exit_code, 0) << report.err;
  EXPECT_EQ(say(cluster, 1), "2.0 2.0\n");
}

// install.sh copies requirements.txt and never reads it; each node then fetches what it finds
// missing, from an index, and gets newer versions of what it has.
TEST_F(Package, What_it_requires_goes_along_and_what_a_host_has_stays) {
  DSI_CLUSTER(cluster, 2);
  make_environments(cluster, 2);
  // An index of two packages, as files; the one here and no host reaches it.
  const std::string index = cluster.folder() + "/index";
  for (const std::string name : {"needle", "thread"}) {
    fs::path found = build_wheel(cluster, "1.5", "adder_op", "", name);
    fs::create_directories(index + "/" + name);
    fs::copy_file(found, index + "/" + name + "/" + found.filename().string());
    std::ofstream(index + "/" + name + "/index.html")
        << "<a href=\"" << found.filename().string() << "\">" << found.filename().string()
        << "</a>\n";
  }
  // Both hosts have an older thread, which will do.
  const std::string old_thread = build_wheel(cluster, "1.0", "adder_op", "", "thread");
  const std::string pip = "/opt/env/bin/python -I -m pip install --no-index --no-deps '";
  for (int node = 1; node <= 2; ++node) {
    ASSERT_EQ(cluster.on_node(node, pip + old_thread + "'").exit_code, 0);
  }
  const char* stamp = "stat -c '%i %Y' /opt/env/lib/python3*/site-packages/thread/__init__.py";
  const std::string before = cluster.on_node(1, stamp).out;
  const std::string wheel = build_wheel(cluster, "2.0", "adder_op", "needle>=1.2,thread");

  JsonReport refused = cluster.ds_install_json(with_config(cluster, 2, {"--package", wheel}));
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(what_of(refused, "node001"), AllOf(HasSubstr("needle"), Not(HasSubstr("thread"))));
  EXPECT_EQ(say(cluster, 1), "1.0 1.0\n");

  JsonReport report = cluster.ds_install_json(
      with_config(cluster, 2, {"--package", wheel, "--with-deps", "-m", "file://" + index}));
  EXPECT_EQ(report.exit_code, 0) << report.err;
  EXPECT_EQ(report.count("installed"), 2);
  Outcome has =
      cluster.on_node(2,
                      "/opt/env/bin/python -I -B -c 'import needle, thread; print(needle.VERSION, "
                      "thread.VERSION)'");
  EXPECT_EQ(has.out, "1.5 1.0\n") << has.err;
  EXPECT_EQ(cluster.on_node(1, stamp).out, before);

  JsonReport back =
      cluster.ds_install_json(with_config(cluster, 2, {"rollback", "--package", "greet"}));
  EXPECT_EQ(back.exit_code, 0) << back.err;
  EXPECT_NE(cluster.on_node(2, "/opt/env/bin/python -I -c 'import needle'").exit_code, 0);
  EXPECT_EQ(cluster.on_node(1, stamp).out, before);
}

// install.sh has one folder for all, /tmp/deepspeed_wheels: the second run removes what the first
// has copied, and each installs whatever lies there.
TEST_F(Package, Two_runs_side_by_side_each_install_their_own_and_leave_nothing_behind) {
  DSI_CLUSTER(cluster, 2);
  make_environments(cluster, 2);
  const std::string other = build_wheel(cluster, "7.0", "adder_op", "", "other");
  const std::string before = cluster.on_node(2, "ls -A /tmp").out;
  auto first_words = with_config(cluster, 2, {"--package", wheel("2.0")});
  auto second_words = with_config(cluster, 2, {"--package", other});
  first_words.insert(first_words.end(), {"-H", cluster.default_hostfile()});
  second_words.insert(second_words.end(), {"-H", cluster.default_hostfile()});
  JsonReport first, second;
  std::thread run([&] { first = cluster.ds_install_json(first_words); });
  second = cluster.ds_install_json(second_words);
  run.join();
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(second.exit_code, 0) << second.err;
  for (int node = 1; node <= 2; ++node) {
    EXPECT_EQ(say(cluster, node), "2.0 2.0\n");
    EXPECT_EQ(
        cluster.on_node(node, "/opt/env/bin/python -I -B -c 'import other; print(other.VERSION)'")
            .out,
        "7.0\n");
  }
  EXPECT_EQ(cluster.on_node(2, "ls -A /tmp").out, before);
}

// install.sh says "sudo -H" to a shell without a terminal: where sudo asks for a password it hangs
// or fails, after the old package is gone.
TEST_F(Package, A_user_who_may_not_write_there_does_with_sudo_and_is_told_so_without) {
  if (std::system("command -v sudo >/dev/null") != 0) GTEST_SKIP() << "there is no sudo here";
  DSI_CLUSTER(cluster, 2);
  make_environments(cluster, 2);
  cluster.on_node(1,
                  "echo 'dsuser ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/dsuser && "
                  "chmod 440 /etc/sudoers.d/dsuser");
  const std::string hostfile = cluster.write_hostfile("dsuser@node001\ndsuser@node002\n");
  auto words = with_config(cluster, 2, {"--package", wheel("2.0"), "-H", hostfile});
  JsonReport without = cluster.ds_install_json(words);
  EXPECT_NE(without.exit_code, 0);
  EXPECT_THAT(what_of(without, "node001"), HasSubstr("belongs to root")) << without.err;
  words.push_back("-s");
  JsonReport with = cluster.ds_install_json(words);
  EXPECT_EQ(with.host("node001").value("result", ""), "installed")
      << what_of(with, "node001") << with.err;
  // Its sudo wants a password, and nobody is asked for one.
  EXPECT_EQ(with.exit_code, 1);
  EXPECT_THAT(with.host("node002").at("error").value("help", ""), HasSubstr("NOPASSWD"));
  EXPECT_EQ(say(cluster, 1), "2.0 2.0\n");
  EXPECT_EQ(say(cluster, 2), "1.0 1.0\n");
}

// Root's own login would name another one.
TEST_F(Package, Under_sudo_it_is_still_the_environment_of_the_user_s_login) {
  if (std::system("command -v sudo >/dev/null") != 0) GTEST_SKIP() << "there is no sudo here";
  DSI_CLUSTER(cluster, 1);
  make_environments(cluster, 1);
  cluster.on_node(1,
                  "echo 'dsuser ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/dsuser && "
                  "chmod 440 /etc/sudoers.d/dsuser && "
                  "echo 'export PATH=/opt/env/bin:$PATH' >/home/dsuser/.bash_profile");
  const std::string hostfile = cluster.write_hostfile("dsuser@node001\n");
  JsonReport report = cluster.ds_install_json({"--package", wheel("2.0"), "-s", "-H", hostfile});
  EXPECT_EQ(report.exit_code, 0) << report.err << what_of(report, "node001");
  EXPECT_EQ(report.host("node001").value("result", ""), "installed");
  EXPECT_EQ(say(cluster, 1), "2.0 2.0\n");
}

// A hold lies in the environment: its packages stay, the ops of the host and other hosts do not.
TEST_F(Package, A_host_whose_environment_is_held_keeps_the_package_and_is_no_failure) {
  DSI_CLUSTER(cluster, 2);
  make_environments(cluster, 2);
  JsonReport held = cluster.ds_install_json(with_config(
      cluster, 2,
      {"hold", "--package", "greet", "--hosts", "node002", "--reason", "a paper's numbers"}));
  EXPECT_EQ(held.exit_code, 0) << held.err;
  EXPECT_EQ(held.host("node002").value("result", ""), "held");

  const auto install = with_config(cluster, 2, {"--package", wheel("2.0"), "--batch", "1"});
  JsonReport run = cluster.ds_install_json(install);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.host("node001").value("result", ""), "installed") << run.err;
  EXPECT_EQ(run.host("node002").value("result", ""), "held");
  EXPECT_THAT(what_of(run, "node002"), HasSubstr("a paper's numbers"));
  EXPECT_EQ(say(cluster, 2), "1.0 1.0\n");
  EXPECT_THAT(cluster.ds_install(with_config(cluster, 2, {"plan", "--package", wheel("2.0")})).out,
              HasSubstr("a paper's numbers"));

  JsonReport let_go =
      cluster.ds_install_json(with_config(cluster, 2, {"unhold", "--package", "greet"}));
  EXPECT_EQ(let_go.exit_code, 0) << let_go.err;
  EXPECT_EQ(cluster.ds_install_json(install).host("node002").value("result", ""), "installed");
  EXPECT_EQ(say(cluster, 2), "2.0 2.0\n");
}

TEST_F(Package, Check_holds_a_host_against_the_last_install_of_that_package) {
  DSI_CLUSTER(cluster, 2);
  make_environments(cluster, 2, false);
  const std::string other = build_wheel(cluster, "7.0", "adder_op", "", "other");
  JsonReport first = cluster.ds_install_json(with_config(cluster, 2, {"--package", wheel("1.0")}));
  ASSERT_EQ(first.exit_code, 0) << first.err;
  // Another package has a release of its own.
  JsonReport second = cluster.ds_install_json(with_config(cluster, 2, {"--package", other}));
  ASSERT_EQ(second.exit_code, 0) << second.err;
  auto check = with_config(cluster, 2, {"check", "--package", "greet"});
  JsonReport well = cluster.ds_install_json(check);
  EXPECT_EQ(well.exit_code, 0) << well.err << what_of(well, "node001");
  // What somebody has put there by hand is not it.
  ASSERT_EQ(cluster
                .on_node(2, "/opt/env/bin/python -I -m pip install --no-index --no-deps '" +
                                wheel("2.0") + "'")
                .exit_code,
            0);
  JsonReport changed = cluster.ds_install_json(check);
  EXPECT_EQ(changed.exit_code, 1);
  EXPECT_EQ(what_of(changed, "node001"), "");
  EXPECT_THAT(what_of(changed, "node002"),
              AllOf(HasSubstr("greet 2.0"), HasSubstr(first.summary().value("release", "?"))));
}

}  // namespace
}  // namespace dsi

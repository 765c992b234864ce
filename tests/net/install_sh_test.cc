// What install.sh does on real hosts, seen by doing it: the other half of docs/packages.md. With
// DSI_INSTALL_SH=FILE the script itself runs (DeepSpeed's repository has it); else what it has pdsh
// and pdcp do after its build, step by step. Where only the script can show it, the test is skipped
// without. What ours does in the same places is in package_test.cc and package_build_test.cc.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/net/cluster.h"

namespace dsi {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

// $1 is the hostfile; it is run in the tree.
constexpr char kSteps[] = R"sh(
hosts=$(awk '{print $1}' "$1" | paste -sd, -)
export PDSH_RCMD_TYPE=ssh
folder=/tmp/deepspeed_wheels
pdsh -w "$hosts" "if [ -d $folder ]; then rm $folder/*; else mkdir -p $folder; fi"
pdcp -w "$hosts" requirements/requirements.txt $folder/
pdsh -w "$hosts" "pip uninstall -y deepspeed"
pdcp -w "$hosts" dist/deepspeed*.whl $folder/
pdsh -w "$hosts" "pip install --disable-pip-version-check $folder/deepspeed*.whl"
pdsh -w "$hosts" ds_report
pdsh -w "$hosts" "rm -r $folder"
)sh";

std::string script() {
  const char* named = std::getenv("DSI_INSTALL_SH");
  return named == nullptr ? "" : named;
}

class InstallSh : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::system("command -v pdsh >/dev/null && command -v pdcp >/dev/null") != 0) {
      GTEST_SKIP() << "there is no pdsh here: apt-get install pdsh";
    }
  }

  // A small project of DeepSpeed's name, built: its tree has dist/.
  static std::string make_tree(Cluster& cluster, const std::string& version,
                               const std::string& requires_these = "") {
    const std::string folder = cluster.folder() + "/deepspeed-" + version;
    fs::create_directories(folder);
    std::string command = "/usr/bin/python3 '" + std::string(DSI_SOURCE_FOLDER) +
                          "/tests/package/greet.py' '" + folder + "' " + version + " adder_op '" +
                          requires_these + "' deepspeed >/dev/null";
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
    const std::string tree = folder + "/tree-" + version;
    fs::create_directories(tree + "/requirements");
    std::ofstream(tree + "/requirements/requirements.txt") << "needle\n";
    fs::rename(folder + "/wheel-" + version, tree + "/dist");
    return tree;
  }
  static std::string wheel_of(const std::string& tree) {
    for (const auto& entry : fs::directory_iterator(tree + "/dist")) return entry.path();
    return {};
  }

  // /opt/env, and with `found` a shell that is no login finds it first.
  static void make_environment(Cluster& cluster, int node, const std::string& wheel, bool found) {
    Outcome made = cluster.on_node(
        node,
        "mkdir -p /opt && cd / && /usr/bin/python3 -m venv --without-pip --system-site-packages "
        "/opt/env && cd /opt/env/bin && "
        "printf '#!/bin/sh\\nexec /opt/env/bin/python -m pip \"$@\"\\n' >pip && chmod +x pip && "
        "printf '[global]\\nindex-url = http://127.0.0.1:9/simple\\nretries = 0\\n' >/etc/pip.conf "
        "&& ./pip install --no-index --no-deps '" +
            wheel + "'");
    ASSERT_EQ(made.exit_code, 0) << made.err << made.out;
    if (found) cluster.on_node(node, "echo 'PATH=/opt/env/bin:$PATH' >/root/.bashrc");
  }

  static Outcome install(Cluster& cluster, const std::string& tree, const std::string& hostfile) {
    std::vector<std::string> command = {"env", "-C", tree, "bash"};
    if (script().empty()) {
      std::ofstream(tree + "/steps.sh") << kSteps;
      command.insert(command.end(), {"steps.sh", hostfile});
    } else {
      // The "python" that it builds with is to be the hosts'.
      const std::string bin = cluster.folder() + "/bin";
      fs::create_directories(bin);
      if (!fs::exists(bin + "/python")) fs::create_symlink("/usr/bin/python3", bin + "/python");
      command.insert(command.begin() + 3, "PATH=" + bin + ":" + std::getenv("PATH"));
      command.insert(command.end(), {script(), "-r", "-H", hostfile});
    }
    return cluster.on_head(command);
  }

  static std::string version_on(Cluster& cluster, int node) {
    return cluster
        .on_node(node,
                 "cd / && /opt/env/bin/python -B -c 'import deepspeed; "
                 "print(deepspeed.VERSION)' 2>&1 | tail -1")
        .out;
  }
};

TEST_F(InstallSh, Ends_with_0_although_most_hosts_have_lost_the_package) {
  DSI_CLUSTER(cluster, 5);
  const std::string old = make_tree(cluster, "1.0");
  for (int node = 1; node <= 5; ++node) make_environment(cluster, node, wheel_of(old), node != 4);
  // Another user's wheel, in the folder that has one name for all.
  cluster.on_node(1, "mkdir /tmp/deepspeed_wheels && echo theirs >/tmp/deepspeed_wheels/other.whl");
  // Nothing can be copied to node 2; node 3 has no pdcp; on node 4 only a login finds the
  // environment; the fifth line of the hostfile ends as on Windows.
  cluster.on_node(2,
                  "mkdir /tmp/deepspeed_wheels && mount -t tmpfs -o ro none /tmp/deepspeed_wheels");
  cluster.on_node(3, "mount --bind /dev/null /usr/bin/pdcp");
  cluster.on_node(4, "echo 'export PATH=/opt/env/bin:$PATH' >/root/.bash_profile");
  const std::string hostfile = cluster.write_hostfile(
      "# four of them\nnode001 slots=8\nnode002 slots=8\nnode003 slots=8\nnode004 slots=8\n"
      "node005\r\n");
  Outcome outcome = install(cluster, make_tree(cluster, "2.0"), hostfile);
  const std::string said = outcome.out + outcome.err;
  EXPECT_EQ(outcome.exit_code, 0) << said;
  EXPECT_EQ(version_on(cluster, 1), "2.0\n") << said;
  EXPECT_THAT(version_on(cluster, 2), HasSubstr("No module named 'deepspeed'")) << said;
  EXPECT_THAT(version_on(cluster, 3), HasSubstr("No module named 'deepspeed'")) << said;
  EXPECT_EQ(version_on(cluster, 4), "1.0\n") << said;
  EXPECT_EQ(version_on(cluster, 5), "1.0\n") << said;
  EXPECT_THAT(said, HasSubstr("#:")) << "a host of that name was asked";
  EXPECT_NE(cluster.on_node(1, "test -e /tmp/deepspeed_wheels/other.whl").exit_code, 0);
  // What requirements.txt asks for was copied, and nobody has read it.
  EXPECT_NE(cluster.on_node(1, "/opt/env/bin/python -c 'import needle'").exit_code, 0);
}

TEST_F(InstallSh, Leaves_nothing_where_a_host_reaches_no_index_or_its_sudo_wants_a_password) {
  DSI_CLUSTER(cluster, 1);
  const std::string old = make_tree(cluster, "1.0");
  make_environment(cluster, 1, wheel_of(old), true);
  Outcome outcome = install(cluster, make_tree(cluster, "2.0", "needle"),
                            cluster.write_hostfile("node001 slots=8\n"));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_THAT(version_on(cluster, 1), HasSubstr("No module named 'deepspeed'"));

  // "Requirement already satisfied": what is altered stays altered.
  const std::string pip = "/opt/env/bin/python -m pip install --no-deps '" + wheel_of(old) + "'";
  cluster.on_node(1, pip);
  cluster.on_node(1,
                  "echo VERSION=0 >$(echo /opt/env/lib/python3*/site-packages/deepspeed/"
                  "__init__.py)");
  Outcome again = cluster.on_node(1, pip);
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(version_on(cluster, 1), "0\n");

  // pdcp writes into the file that is there, under whoever has it mapped.
  const char* inode = "stat -c %i /tmp/mapped";
  const std::string file = cluster.folder() + "/mapped";
  std::ofstream(file) << "old";
  const std::vector<std::string> copy = {
      "env", "PDSH_RCMD_TYPE=ssh", "pdcp", "-w", "node001", file, "/tmp/"};
  EXPECT_EQ(cluster.on_head(copy).exit_code, 0);
  const std::string before = cluster.on_node(1, inode).out;
  std::ofstream(file) << "new";
  EXPECT_EQ(cluster.on_head(copy).exit_code, 0);
  EXPECT_EQ(cluster.on_node(1, "cat /tmp/mapped").out, "new");
  EXPECT_EQ(cluster.on_node(1, inode).out, before);

  // A sudo that wants a password has nobody to ask.
  if (std::system("command -v sudo >/dev/null") != 0) return;
  Outcome sudo = cluster.on_head(
      {"env", "PDSH_RCMD_TYPE=ssh", "pdsh", "-w", "dsuser@node001", "sudo -H true"});
  EXPECT_EQ(sudo.exit_code, 0);
  EXPECT_THAT(sudo.err, HasSubstr("sudo: ")) << sudo.out;
}

TEST_F(InstallSh, Deletes_what_it_takes_for_its_own_in_whatever_folder_it_is_called_from) {
  if (script().empty()) GTEST_SKIP() << "DSI_INSTALL_SH names no install.sh";
  DSI_CLUSTER(cluster, 1);
  const std::string here = cluster.folder() + "/here";
  for (const char* name : {"build", "dist", "deepspeed.egg-info"}) {
    fs::create_directories(here + "/" + name);
    std::ofstream(here + "/" + std::string(name) + "/mine") << "mine";
  }
  Outcome outcome = cluster.on_head(
      {"env", "-C", here, "bash", script(), "-r", "-H", cluster.default_hostfile()});
  EXPECT_NE(outcome.exit_code, 0) << "there is no setup.py";
  EXPECT_TRUE(fs::is_empty(here)) << outcome.out << outcome.err;
}

// "build" or "wheel", by the script's age; a new environment has neither. PackageBuild shows that
// ours needs no "build".
TEST_F(InstallSh, Needs_a_package_to_build_with_that_no_requirements_file_names) {
  if (script().empty()) GTEST_SKIP() << "DSI_INSTALL_SH names no install.sh";
  DSI_CLUSTER(cluster, 1);
  const std::string tree = make_tree(cluster, "2.0");
  const std::string environment = cluster.folder() + "/new";
  ASSERT_EQ(cluster.on_head({"/usr/bin/python3", "-m", "venv", environment}).exit_code, 0);
  Outcome outcome =
      cluster.on_head({"env", "-C", tree, "PATH=" + environment + "/bin:" + std::getenv("PATH"),
                       "bash", script(), "-r", "-H", cluster.default_hostfile()});
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out + outcome.err, AnyOf(HasSubstr("No module named build"),
                                               HasSubstr("error: invalid command 'bdist_wheel'")));
}

}  // namespace
}  // namespace dsi

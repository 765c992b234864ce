// --package from a source tree to the hosts: built once here, checked, installed with each host's
// own pip, as a user sees it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/net/cluster.h"

namespace dsi {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A project with one compiled module, as small as they come.
std::string write_project(const std::string& folder, const std::string& version) {
  fs::create_directories(folder + "/tally");
  std::ofstream(folder + "/tally/__init__.py") << "VERSION = '" << version << "'\n";
  std::ofstream(folder + "/tally/count_op.c")
      << "#include <Python.h>\n"
         "static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, \"count_op\"};\n"
         "PyMODINIT_FUNC PyInit_count_op(void) { return PyModule_Create(&module); }\n";
  std::ofstream(folder + "/setup.py")
      << "from setuptools import Extension, setup\n"
         "setup(name='tally', version='"
      << version
      << "', packages=['tally'],\n"
         "      ext_modules=[Extension('tally.count_op', ['tally/count_op.c'])])\n";
  return folder;
}

constexpr char kPython[] = "/opt/env/bin/python";

void make_environment(Cluster& cluster, int node) {
  Outcome made = cluster.on_node(node, "/usr/bin/python3 -m venv /opt/env");
  ASSERT_EQ(made.exit_code, 0) << made.out << made.err;
}

std::string version_on(Cluster& cluster, int node) {
  return cluster
      .on_node(node,
               "cd / && /opt/env/bin/python -c 'import tally, tally.count_op as o; "
               "print(tally.VERSION, o.__name__)' 2>&1")
      .out;
}

// The hosts have an environment at a path that this machine does not have: what is built here is
// built by the Python that a configuration's host entries leave for it.
std::string write_config(Cluster& cluster) {
  std::string path = cluster.folder() + "/python.yaml";
  std::ofstream(path) << "python: /usr/bin/python3\nhosts:\n  node[001-009]: {python: " << kPython
                      << "}\n";
  return path;
}

TEST(PackageBuild, A_source_tree_is_built_once_and_goes_into_every_host_s_own_Python) {
  DSI_CLUSTER(cluster, 3);
  for (int node = 1; node <= 3; ++node) make_environment(cluster, node);
  const std::string config = write_config(cluster);
  const std::string one = write_project(cluster.folder() + "/one", "1.0");
  // Their Python is known before anything of ours is there, and nothing is there afterwards.
  Outcome before = cluster.ds_install({"plan", "--package", one, "--config", config});
  EXPECT_EQ(before.exit_code, 0) << before.err;
  EXPECT_THAT(before.out, Not(HasSubstr("is looked at when it installs")));
  EXPECT_EQ(cluster.on_node(1, "ls -d /opt/ds-ops 2>/dev/null").out, "");
  JsonReport first = cluster.ds_install_json({"--package", one, "--config", config});
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(first.count("installed"), 3);
  EXPECT_TRUE(first.every_op_is_ok());
  for (int node = 1; node <= 3; ++node) {
    EXPECT_EQ(version_on(cluster, node), "1.0 tally.count_op\n");
  }
  EXPECT_FALSE(fs::exists(one + "/build"));
  EXPECT_FALSE(fs::exists(one + "/tally.egg-info"));

  JsonReport again = cluster.ds_install_json({"--package", one, "--config", config});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(again.count("up-to-date"), 3);
  EXPECT_THAT(again.err, HasSubstr("Unchanged"));

  const std::string two = write_project(cluster.folder() + "/two", "2.0");
  Outcome plan = cluster.ds_install({"plan", "--package", two, "--config", config});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("node[001-003] (3 hosts): replace"));
  EXPECT_EQ(version_on(cluster, 1), "1.0 tally.count_op\n");
  JsonReport second = cluster.ds_install_json({"--package", two, "--config", config});
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_EQ(version_on(cluster, 3), "2.0 tally.count_op\n");

  JsonReport back = cluster.ds_install_json({"rollback", "--package", "tally", "--config", config});
  EXPECT_EQ(back.exit_code, 0) << back.err;
  EXPECT_EQ(version_on(cluster, 2), "1.0 tally.count_op\n");
  JsonReport gone =
      cluster.ds_install_json({"uninstall", "--package", "tally", "--config", config});
  EXPECT_EQ(gone.exit_code, 0) << gone.err;
  EXPECT_THAT(version_on(cluster, 1), HasSubstr("ModuleNotFoundError"));
}

// install.sh deletes build, dist and deepspeed.egg-info of the folder that it is called from, and
// needs the package "build", which its requirements do not name.
TEST(PackageBuild, Called_from_another_folder_it_deletes_nothing_there_and_needs_no_build_package) {
  DSI_CLUSTER(cluster, 1);
  make_environment(cluster, 1);
  const std::string project = write_project(cluster.folder() + "/one", "1.0");
  const std::string here = cluster.folder() + "/here";
  const std::string trap = cluster.folder() + "/trap";
  const char* kept[] = {"build", "dist", "tally.egg-info", "deepspeed.egg-info", "deepspeed"};
  for (const std::string& folder : {here, project}) {
    for (const char* name : kept) {
      fs::create_directories(folder + "/" + name);
      std::ofstream(folder + "/" + name + "/mine") << "mine";
    }
  }
  std::ofstream(here + "/deepspeed/git_version_info_installed.py") << "mine";
  fs::create_directories(trap + "/build");
  std::ofstream(trap + "/build/__init__.py") << "raise SystemExit('build was imported')\n";
  std::vector<std::string> command = {"env", "PYTHONPATH=" + trap,       "sh",
                                      "-c",  "cd \"$0\" && exec \"$@\"", here};
  for (std::string& word : cluster.ds_install_command(
           {"--package", project, "--config", write_config(cluster), "--json"})) {
    command.push_back(std::move(word));
  }
  JsonReport report = read_json_report(cluster.on_head(command));
  EXPECT_EQ(report.exit_code, 0) << report.err;
  EXPECT_EQ(version_on(cluster, 1), "1.0 tally.count_op\n");
  for (const std::string& folder : {here, project}) {
    for (const char* name : kept) {
      EXPECT_TRUE(fs::exists(folder + "/" + name + "/mine")) << folder << " " << name;
    }
  }
  EXPECT_TRUE(fs::exists(here + "/deepspeed/git_version_info_installed.py"));
}

TEST(PackageBuild, A_bundle_of_a_package_needs_no_compiler) {
  DSI_CLUSTER(cluster, 1);
  make_environment(cluster, 1);
  const std::string project = write_project(cluster.folder() + "/one", "1.0");
  const std::string bundle = cluster.folder() + "/tally.tar.zst";
  Outcome build = cluster.on_head(
      {DSI_PROGRAM, "build", "--package", project, "--python", "/usr/bin/python3", "-o", bundle});
  ASSERT_EQ(build.exit_code, 0) << build.err;
  Outcome install = cluster.on_head({"env", "PATH=/nonexistent", DSI_PROGRAM, "--bundle", bundle,
                                     "--python", kPython, "-r", "-H", cluster.default_hostfile()});
  EXPECT_EQ(install.exit_code, 0) << install.out << install.err;
  EXPECT_EQ(version_on(cluster, 1), "1.0 tally.count_op\n");
}

TEST(PackageBuild, A_project_that_does_not_compile_touches_no_package_and_shows_the_error) {
  DSI_CLUSTER(cluster, 1);
  make_environment(cluster, 1);
  const std::string config = write_config(cluster);
  const std::string project = write_project(cluster.folder() + "/one", "1.0");
  std::ofstream(project + "/tally/count_op.c") << "#include <no_such_header.h>\n";
  Outcome failed = cluster.ds_install({"--package", project, "--config", config});
  EXPECT_EQ(failed.exit_code, 3);
  EXPECT_THAT(failed.err, AllOf(HasSubstr("the header no_such_header.h is not there"),
                                HasSubstr("no host was touched"), HasSubstr("build.log")));
  EXPECT_THAT(version_on(cluster, 1), HasSubstr("ModuleNotFoundError"));
}

}  // namespace
}  // namespace dsi

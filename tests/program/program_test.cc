// ds-install as a whole on this machine, without hosts: installed, built with, and fed nonsense.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "orchestrator/adapters/local_process.h"
#include "orchestrator/base/file.h"
#include "orchestrator/base/sha256.h"
#include "tests/unit/temp_folder.h"

namespace dsi {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Everything the program writes goes to `home`.
ProcessResult run(const fs::path& home, std::vector<std::string> command) {
  LocalProcessRunner processes;
  auto result = processes.run({std::move(command),
                               home,
                               {{"HOME", home.string()},
                                {"XDG_CACHE_HOME", (home / "cache").string()},
                                {"XDG_STATE_HOME", (home / "state").string()},
                                {"XDG_CONFIG_HOME", (home / "config").string()}}},
                              Deadline::after(280s), {});
  if (!result) {
    ADD_FAILURE() << result.error().what;
    return {};
  }
  return *result;
}

// `cmake --install` of the program to a folder; its ds-install.
std::string install_to(const fs::path& prefix) {
  ProcessResult installed =
      run(prefix.parent_path(), {"cmake", "--install", DSI_BUILD_FOLDER, "--prefix",
                                 prefix.string(), "--component", "program"});
  EXPECT_TRUE(installed.ok()) << installed.err;
  return (prefix / "bin/ds-install").string();
}

TEST(Program, Installed_twice_in_different_folders_builds_the_same_bundle) {
  std::string digests[2];
  std::string names[] = {"one", "another folder/two"};
  for (int i = 0; i < 2; ++i) {
    TempFolder folder;
    fs::create_directories(folder.path() / names[i]);
    std::string program = install_to(folder.path() / names[i] / "usr");
    fs::path bundle = folder.path() / names[i] / "ops.tar.zst";
    ProcessResult built = run(folder.path() / names[i],
                              {program, "build", "--ops", "cpu_lion", "-o", bundle.string()});
    ASSERT_TRUE(built.ok()) << built.err;
    EXPECT_THAT(built.err, HasSubstr("Built 1 op (cpu_lion)"));
    digests[i] = sha256_file(bundle).value_or("none");

    // Again: nothing to do, the same bytes.
    ProcessResult again = run(folder.path() / names[i],
                              {program, "build", "--ops", "cpu_lion", "-o", bundle.string()});
    ASSERT_TRUE(again.ok()) << again.err;
    EXPECT_THAT(again.err, HasSubstr("Unchanged 1 op"));
    EXPECT_EQ(sha256_file(bundle).value_or("none"), digests[i]);
  }
  EXPECT_EQ(digests[0], digests[1]);
}

TEST(Program, A_changed_source_is_another_build_and_another_release) {
  TempFolder folder;
  std::string program = install_to(folder.path() / "usr");
  std::vector<std::string> build = {program, "build", "--ops", "cpu_lion", "-o", "ops.tar.zst"};
  ASSERT_TRUE(run(folder.path(), build).ok());
  std::string before = sha256_file(folder.path() / "ops.tar.zst").value_or("");
  fs::path source = folder.path() / "usr/share/ds-install/kernels/cpu_lion/cpu_lion.cpp";
  std::string text = read_file(source).value();
  ASSERT_TRUE(write_file_atomically(
      source,
      text +
          "\nextern \"C\" __attribute__((visibility(\"default\"))) int ds_mark() { return 7; }\n"));
  ProcessResult changed = run(folder.path(), build);
  ASSERT_TRUE(changed.ok()) << changed.err;
  EXPECT_THAT(changed.err, HasSubstr("Built 1 op"));
  EXPECT_NE(sha256_file(folder.path() / "ops.tar.zst").value_or(""), before);
}

// ---- device code, on a machine that has none to run it on

bool has_nvcc() {
  LocalProcessRunner processes;
  auto ran = processes.run({{"nvcc", "--version"}, {}, {}}, Deadline::after(60s), {});
  return ran && ran->ok();
}

// What a host with one H100 has: a program that says so.
fs::path pretend_device(const TempFolder& folder, const std::string& capability) {
  fs::path program = folder.write(
      "bin/nvidia-smi",
      "#!/bin/sh\ncase \"$*\" in\n--query-gpu=*) echo 'NVIDIA H100, " + capability +
          ", 81559, 580.65.06, Disabled' ;;\n*) printf 'CUDA Version : 13.0\\n' ;;\nesac\n");
  fs::permissions(program, fs::perms::owner_all);
  return program.parent_path();
}

// With the environment of `run`, a device and these variables.
ProcessResult run_with_device(const TempFolder& folder, const std::string& capability,
                              const std::vector<std::string>& variables,
                              std::vector<std::string> arguments) {
  std::vector<std::string> command = {
      "env", "PATH=" + pretend_device(folder, capability).string() + ":" + std::getenv("PATH")};
  command.insert(command.end(), variables.begin(), variables.end());
  command.push_back(DSI_PROGRAM);
  command.insert(command.end(), arguments.begin(), arguments.end());
  command.insert(command.end(), {"-l", "-r", "--ops-dir", DSI_PROGRAM_OPS, "--ops", "scale",
                                 "--prefix", (folder.path() / "there").string()});
  return run(folder.path(), command);
}

TEST(Program, Device_code_is_built_for_what_the_hosts_have_and_read_back) {
  if (!has_nvcc()) GTEST_SKIP() << "there is no nvcc here";
  TempFolder folder;
  ProcessResult plan = run_with_device(folder, "9.0", {}, {"plan"});
  ASSERT_TRUE(plan.ok()) << plan.err;
  EXPECT_THAT(plan.out, ContainsRegex("to be compiled with .* and CUDA [0-9.]+ for 9.0\n"));
  ProcessResult installed = run_with_device(folder, "9.0", {}, {});
  ASSERT_TRUE(installed.ok()) << installed.out << installed.err;
  auto manifest =
      nlohmann::json::parse(read_file(folder.path() / "there/current/manifest.json").value_or(""));
  EXPECT_EQ(manifest["ops"][0]["compute_capabilities"], nlohmann::json({"9.0"}));
  EXPECT_THAT(manifest["built_with"]["cuda"].get<std::string>(),
              ContainsRegex("^[0-9]+[.][0-9]+$"));

  // Another host, and the user knows better than to build for it: seen before anything changes.
  ProcessResult refused = run_with_device(folder, "8.0", {"TORCH_CUDA_ARCH_LIST=;Hopper"}, {});
  EXPECT_EQ(refused.exit_code, 4) << refused.out;
  EXPECT_THAT(refused.out + refused.err,
              AllOf(HasSubstr("scale has no code for a device of the host"),
                    HasSubstr("required code for 8.0, found code for 9.0, 9.0+PTX"),
                    HasSubstr("[no-code-for-device]")));

  ProcessResult nonsense = run_with_device(folder, "9.0", {"TORCH_CUDA_ARCH_LIST=9.0;Hoper"}, {});
  EXPECT_EQ(nonsense.exit_code, 3);
  EXPECT_THAT(nonsense.err, AllOf(HasSubstr("TORCH_CUDA_ARCH_LIST:5"), HasSubstr("Hopper?")));
}

TEST(Program, Where_no_host_has_a_device_an_op_for_devices_is_refused_with_what_to_do) {
  TempFolder folder;
  ProcessResult result =
      run(folder.path(), {DSI_PROGRAM, "-l", "-r", "--ops-dir", DSI_PROGRAM_OPS, "--ops", "scale",
                          "--prefix", (folder.path() / "there").string()});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, AllOf(HasSubstr("scale: has code for cuda only"),
                                HasSubstr("DS_ACCELERATOR=cuda builds it all the same")));
  EXPECT_FALSE(fs::exists(folder.path() / "there/current"));
}

TEST(Program, A_misspelt_op_is_suggested) {
  TempFolder folder;
  ProcessResult result = run(folder.path(), {DSI_PROGRAM, "build", "--ops", "cpu_adm"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("there is no op cpu_adm"), HasSubstr("did you mean cpu_adam?")));
}

TEST(Program, A_torch_that_is_none_is_named) {
  TempFolder folder;
  ProcessResult result = run(folder.path(), {DSI_PROGRAM, "build", "--torch", "/nonexistent"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, AllOf(HasSubstr("/nonexistent holds no libtorch"), HasSubstr("help:")));
}

TEST(Program, A_file_that_is_no_bundle_is_named) {
  TempFolder folder;
  fs::path file = folder.write("ops.tar.zst", "not an archive");
  ProcessResult result = run(folder.path(), {DSI_PROGRAM, "plan", "-l", "--bundle", file.string()});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("cannot use the bundle " + file.string()));
}

TEST(Program, A_home_that_cannot_be_written_is_said) {
  TempFolder folder;
  folder.write("cache", "a file where a folder should be");
  ProcessResult result = run(folder.path(), {DSI_PROGRAM, "build", "--ops", "cpu_lion"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("cannot make the build folder"), HasSubstr("XDG_CACHE_HOME")));
}

TEST(Program, Json_is_json_on_every_way_out) {
  TempFolder folder;
  for (std::vector<std::string> arguments : std::vector<std::vector<std::string>>{
           {"--json", "--no-such-option"},
           {"--json", "-H", "/nonexistent"},
           {"hosts", "--json", "--hosts", "node[1-3],gw"},
           {"plan", "--json", "-l", "--bundle", "/nonexistent"},
           {"report", "--json", "-l", "--prefix", folder.path().string() + "/nothing"}}) {
    arguments.insert(arguments.begin(), DSI_PROGRAM);
    ProcessResult result = run(folder.path(), arguments);
    std::istringstream lines(result.out);
    int rows = 0;
    for (std::string line; std::getline(lines, line); ++rows) {
      EXPECT_TRUE(nlohmann::json::accept(line)) << line;
    }
    EXPECT_GT(rows, 0) << arguments.back();
  }
}

TEST(Program, Nonsense_is_one_clear_error_and_never_a_trace) {
  TempFolder folder;
  folder.write("config.yaml", "fanout: many\nhostfle: x\n");
  for (std::vector<std::string> arguments :
       std::vector<std::vector<std::string>>{{"--fanout", "0"},
                                             {"--fanout", "9999999999999999999"},
                                             {"--prefix", "relative"},
                                             {"--prefix", "/opt/$(id)"},
                                             {"--hosts", "-oProxyCommand=x"},
                                             {"--hosts", "node[1-"},
                                             {"-H", "/dev/null"},
                                             {"-H", folder.path().string()},
                                             {"--config", "/nonexistent"},
                                             {"--config", (folder.path() / "config.yaml").string()},
                                             {"\xff\xfe"},
                                             {"--ops", ","}}) {
    std::string shown = arguments.back();
    arguments.insert(arguments.begin(), {DSI_PROGRAM, "plan"});
    ProcessResult result = run(folder.path(), arguments);
    EXPECT_EQ(result.exit_code, 2) << shown << result.err;
    EXPECT_THAT(result.err, AllOf(HasSubstr("error: "), Not(HasSubstr("defect of ds-install"))))
        << shown;
  }
}

TEST(Program, Examples_are_written_once) {
  TempFolder folder;
  ProcessResult first = run(folder.path(), {DSI_PROGRAM, "-e", "-o", "examples"});
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_TRUE(fs::exists(folder.path() / "examples/hostfile"));
  EXPECT_TRUE(fs::exists(folder.path() / "examples/site.yaml"));
  EXPECT_TRUE(fs::exists(folder.path() / "examples/python/train_step.py"));
  ProcessResult second = run(folder.path(), {DSI_PROGRAM, "-e", "-o", "examples"});
  EXPECT_EQ(second.exit_code, 2);
  EXPECT_THAT(second.err, StartsWith("error: "));
}

TEST(Schedule, Writes_lists_and_removes_a_timer_and_refuses_what_is_no_time) {
  TempFolder folder;
  const std::string program = std::string(DSI_BUILD_FOLDER) + "/ds-install";
  const fs::path units = folder.path() / "config/systemd/user";
  ProcessResult added =
      run(folder.path(), {program, "schedule", "--user", "-r", "--name", "gpu", "--at", "Sun 03:00",
                          "-H", "hosts.txt", "--batch", "1,10%"});
  ASSERT_TRUE(added.ok()) << added.err;
  EXPECT_THAT(added.out, HasSubstr("Sun *-*-* 03:00:00"));
  const std::string service = read_file(units / "ds-install-gpu.service").value_or("");
  EXPECT_THAT(service, HasSubstr("--hostfile=" + (folder.path() / "hosts.txt").string()));
  EXPECT_THAT(read_file(units / "ds-install-gpu.timer").value_or(""),
              HasSubstr("OnCalendar=Sun 03:00\n"));
  EXPECT_THAT(run(folder.path(), {program, "schedule", "list", "--user"}).out,
              AllOf(HasSubstr("ds-install-gpu  Sun 03:00"), HasSubstr("--batch=1,10%%")));

  ProcessResult bad = run(
      folder.path(), {program, "schedule", "--user", "-r", "--name", "gpu", "--at", "Sunn 03:00"});
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_THAT(bad.err, AllOf(HasSubstr("Sunn 03:00"), HasSubstr("help:")));
  EXPECT_EQ(read_file(units / "ds-install-gpu.service").value_or(""), service);

  EXPECT_TRUE(run(folder.path(), {program, "schedule", "remove", "--user", "--name", "gpu"}).ok());
  EXPECT_TRUE(fs::is_empty(units));
  EXPECT_EQ(
      run(folder.path(), {program, "schedule", "remove", "--user", "--name", "gpu"}).exit_code, 2);
}

}  // namespace
}  // namespace dsi

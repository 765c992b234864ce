#include <dlfcn.h>
#include <link.h>
#include <sys/statvfs.h>

#include <chrono>
#include <cstdio>
#include <memory>

#include "tests/agent/fixture.h"

namespace dsi::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string output_of(const std::string& command, int* exit_code) {
  FILE* pipe = ::popen(command.c_str(), "r");
  std::string text;
  char buffer[4096];
  while (std::size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) text.append(buffer, n);
  *exit_code = WEXITSTATUS(::pclose(pipe));
  return text;
}

using ProbeTest = AgentTest;

TEST_F(ProbeTest, Each_fault_costs_one_cell_and_says_what_it_is) {
  TestRelease release = make_release("broken");
  for (const char* kind : {"crash", "crash_on_load", "exit_on_load", "hang", "wrong", "skipped",
                           "garbage", "no_test", "missing", "undefined", "versioned"}) {
    release.add_op(kind, kOps / fmt::format("libds_{}.so", kind));
  }
  // It was linked to version 2 of this library; the release brings version 1.
  release.add_file("lib/libdsversion.so", slurp(kOps / "version1/libdsversion.so"));
  ManifestOp absent;
  absent.name = "zz_absent";
  absent.devices = {"cpu"};
  absent.not_built = "libaio.h is missing";
  release.manifest.ops.push_back(absent);

  protocol::InstallRequest request;
  request.probe_timeout_s = 2;
  auto start = std::chrono::steady_clock::now();
  ASSERT_EQ(install(release, request), "installed") << last_.error.what;
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));

  EXPECT_EQ(status_of("good"), "ok");
  EXPECT_EQ(status_of("crash"), "crash");
  EXPECT_THAT(detail_of("crash"), StartsWith("SIGABRT in its self-test"));
  EXPECT_EQ(status_of("crash_on_load"), "crash");
  EXPECT_EQ(detail_of("crash_on_load"), "SIGABRT while it was loaded: the last words");
  EXPECT_EQ(status_of("exit_on_load"), "crash");
  EXPECT_EQ(detail_of("exit_on_load"), "it ended its process with exit code 0 while it was loaded");
  EXPECT_EQ(status_of("hang"), "crash");
  EXPECT_EQ(detail_of("hang"), "no answer within 2 s in its self-test");
  EXPECT_EQ(status_of("wrong"), "wrong");
  EXPECT_EQ(detail_of("wrong"), "element 3 is 1.5, the reference 1.25");
  EXPECT_EQ(status_of("skipped"), "skipped");
  EXPECT_EQ(status_of("garbage"), "wrong") << "what an op prints forges no answer";
  EXPECT_EQ(detail_of("garbage"), "two lines");
  EXPECT_EQ(status_of("no_test"), "incompatible");
  EXPECT_THAT(detail_of("no_test"), HasSubstr("ds_self_test_no_test"));
  EXPECT_EQ(status_of("missing"), "missing");
  EXPECT_EQ(detail_of("missing"), "libds_absent.so is not on this node");
  EXPECT_EQ(status_of("undefined"), "incompatible");
  EXPECT_THAT(detail_of("undefined"), HasSubstr("c10::Tensor::data()"));
  EXPECT_EQ(status_of("versioned"), "incompatible");
  EXPECT_THAT(detail_of("versioned"), HasSubstr("needs DSI_2"));
  EXPECT_EQ(status_of("zz_absent"), "not-built");
  EXPECT_EQ(detail_of("zz_absent"), "libaio.h is missing");
}

// As conda has it: torch's own folder is not where the C++ library and others of its environment
// are, and Python finds them all the same.
// Where the loader finds a library of the system.
fs::path path_of_library(const char* name) {
  std::unique_ptr<void, int (*)(void*)> library(::dlopen(name, RTLD_LAZY), ::dlclose);
  link_map* map = nullptr;
  if (!library || ::dlinfo(library.get(), RTLD_DI_LINKMAP, &map) != 0) return {};
  return fs::canonical(map->l_name);
}

TEST_F(ProbeTest, An_op_finds_the_libraries_of_the_environment_that_its_torch_belongs_to) {
  const fs::path env = folder_.path() / "env/lib";
  const fs::path torch = env / "python3.11/site-packages/torch/lib";
  fs::create_directories(torch);
  fs::copy_file(kOps / "torch_good/libtorch_cpu.so", torch / "libtorch_cpu.so");
  fs::copy_file(kOps.parent_path() / "libds_absent.so", env / "libds_absent.so");
  TestRelease release = make_release("conda");
  release.add_op("missing", kOps / "with_torch/libds_missing.so");
  release.manifest.ops.back().needs_libraries = {"libtorch_cpu.so", "libds_absent.so", "libc.so.6"};
  protocol::InstallRequest request;
  request.torch_folders = {torch.string()};
  ASSERT_EQ(install(release, request), "installed") << last_.error.what;
  EXPECT_EQ(status_of("missing"), "missing") << "a venv has no libraries beside its Python's";

  fs::copy_file(path_of_library("libstdc++.so.6"), env / "libstdc++.so.6");
  TestRelease again = make_release("conda2");
  again.add_op("missing", kOps / "with_torch/libds_missing.so");
  again.manifest.ops.back().needs_libraries = {"libtorch_cpu.so", "libds_absent.so", "libc.so.6"};
  ASSERT_EQ(install(again, request), "installed") << last_.error.what;
  EXPECT_EQ(status_of("missing"), "ok") << detail_of("missing");
}

TEST_F(ProbeTest, A_row_for_each_device) {
  TestRelease release = make_release("1");
  release.manifest.ops[0].devices = {"cpu", "cuda"};
  ASSERT_EQ(install(release), "installed");
  ASSERT_EQ(last_.ops.size(), 2u);
  EXPECT_EQ(last_.ops[1].device, "cuda");
  EXPECT_EQ(last_.ops[1].detail, "cuda") << "the self-test is told the device";
}

TEST_F(ProbeTest, A_file_that_is_no_library_is_incompatible) {
  TestRelease release = make_release("1");
  write(folder_.path() / "text.so", std::string(5000, 'x'));
  release.add_op("text", folder_.path() / "text.so");
  ASSERT_EQ(install(release), "installed");
  EXPECT_EQ(status_of("text"), "incompatible");
  EXPECT_THAT(detail_of("text"), HasSubstr("invalid ELF header"));
}

class ReportTest : public ProbeTest {
 protected:
  void install_with_report(bool broken) {
    TestRelease release = make_release("1");
    if (broken) release.add_op("wrong", kOps / "libds_wrong.so");
    release.add_file("bin/ds-report", slurp(DSI_AGENT), 0755);
    release.manifest.built_with["torch"] = "1.13.1";
    ASSERT_EQ(install(release), "installed") << last_.error.what;
    id_ = release.id();
  }
  std::string ds_report(const std::string& arguments, int* exit_code) {
    return output_of(fmt::format("'{}/current/bin/ds-report' {} 2>&1", prefix_.string(), arguments),
                     exit_code);
  }
  std::string id_;
};

TEST_F(ReportTest, Prints_the_form_that_people_know) {
  install_with_report(true);
  int exit_code = -1;
  std::string text = ds_report("", &exit_code);
  EXPECT_EQ(exit_code, 1);
  const std::string rule = std::string(50, '-') + "\n";
  EXPECT_THAT(text,
              StartsWith(rule + "DeepSpeed C++/CUDA extension op report\n" + rule +
                         "op name ................ installed .. compatible\n" + rule +
                         "good ................... [YES] ...... [OKAY]\n"
                         "wrong .................. [YES] ...... [NO]\n" +
                         rule + "wrong on cpu: wrong: element 3 is 1.5, the reference 1.25\n"));
  EXPECT_THAT(text, HasSubstr("built with torch ....... 1.13.1\n"));
  EXPECT_THAT(text, HasSubstr("release ................ " + id_ + "\n"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("\x1b")));
  struct statvfs shm {};
  ASSERT_EQ(::statvfs("/dev/shm", &shm), 0);
  // The agent has no floating point to print it by.
  EXPECT_THAT(text, HasSubstr(fmt::format("{:.2f} GB\n", static_cast<double>(shm.f_blocks) *
                                                             static_cast<double>(shm.f_frsize) /
                                                             (1024.0 * 1024.0 * 1024.0))));
}

TEST_F(ReportTest, Ends_with_0_if_all_is_well_and_speaks_json) {
  install_with_report(false);
  int exit_code = -1;
  std::string text = ds_report("--json", &exit_code);
  EXPECT_EQ(exit_code, 0) << text;
  std::vector<std::string> types;
  for (std::size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
    auto row = nlohmann::json::parse(text.substr(at, text.find('\n', at) - at));
    types.push_back(row["type"]);
    if (row["type"] == "op") {
      EXPECT_EQ(row["status"], "ok");
    }
    if (row["type"] == "host") {
      EXPECT_EQ(row["release"], id_);
    }
  }
  EXPECT_THAT(types, ::testing::ElementsAre("version", "host", "op", "summary"));
}

TEST_F(ReportTest, Says_no_for_a_library_that_was_emptied) {
  install_with_report(false);
  write(prefix_ / "current/lib/libds_good.so", "");
  int exit_code = -1;
  std::string text = ds_report("", &exit_code);
  EXPECT_EQ(exit_code, 1);
  EXPECT_THAT(text, HasSubstr("good ................... [NO] ....... [NO]\n"));
  EXPECT_THAT(text, HasSubstr("good on cpu: damaged: lib/libds_good.so is empty"));
}

TEST_F(ReportTest, Has_a_help_and_refuses_what_it_does_not_know) {
  install_with_report(false);
  int exit_code = -1;
  EXPECT_THAT(ds_report("--help", &exit_code), StartsWith("Usage: ds-report"));
  EXPECT_EQ(exit_code, 0);
  ds_report("--jason", &exit_code);
  EXPECT_EQ(exit_code, 2);
  EXPECT_THAT(ds_report("/nowhere/at/all", &exit_code), HasSubstr("nothing is installed at"));
  EXPECT_EQ(exit_code, 1);
}

}  // namespace
}  // namespace dsi::testing

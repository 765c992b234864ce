// Ops whose processes are forked from one that has loaded their libtorch: nothing may differ from
// a process of their own but the time that it takes.
#include <algorithm>
#include <chrono>

#include "tests/agent/fixture.h"

namespace dsi::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class SharedLoadTest : public AgentTest {
 protected:
  void SetUp() override { ::setenv("DSI_TEST_LOADS", loads_.c_str(), 1); }
  void TearDown() override { ::unsetenv("DSI_TEST_LOADS"); }

  static void add(TestRelease& release, const std::string& kind) {
    ManifestOp& op = release.add_op(kind, kOps / fmt::format("with_torch/libds_{}.so", kind));
    op.needs_libraries = {"libtorch_cpu.so", "libc.so.6"};
    if (kind == "missing") op.needs_libraries.emplace_back("libds_absent.so");
  }
  // A release with ops that need torch, "good" and `kinds`.
  static TestRelease with_torch(const std::vector<std::string>& kinds) {
    TestRelease release;
    release.add_file("bin/ds-probe", slurp(DSI_PROBE), 0755);
    add(release, "good");
    for (const std::string& kind : kinds) add(release, kind);
    return release;
  }
  std::string install_with(const TestRelease& release, const fs::path& torch, int timeout_s = 30) {
    protocol::InstallRequest request;
    request.torch_folders = {torch.string()};
    request.probe_timeout_s = timeout_s;
    return install(release, request);
  }
  // How often a process has loaded torch.
  long loads() const {
    std::string text = slurp(loads_);
    return std::count(text.begin(), text.end(), '\n');
  }

  fs::path loads_ = folder_.path() / "loads";
};

TEST_F(SharedLoadTest, Torch_is_loaded_once_for_all_ops) {
  TestRelease release = with_torch({"skipped"});
  release.manifest.ops[0].devices = {"cpu", "cuda", "npu"};
  ASSERT_EQ(install_with(release, kOps / "torch_good"), "installed");
  ASSERT_EQ(last_.ops.size(), 4u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(last_.ops[i].status, "ok") << last_.ops[i].detail;
  EXPECT_EQ(last_.ops[1].detail, "cuda");
  EXPECT_EQ(last_.ops[2].detail, "npu");
  EXPECT_EQ(status_of("skipped"), "skipped");
  EXPECT_EQ(loads(), 1);
}

TEST_F(SharedLoadTest, Each_fault_costs_one_cell_and_says_what_it_says_alone) {
  TestRelease release =
      with_torch({"crash", "crash_on_load", "exit_on_load", "hang", "wrong", "skipped", "garbage",
                  "no_test", "missing", "undefined", "undefined_torch", "forge", "own_path"});
  auto start = std::chrono::steady_clock::now();
  ASSERT_EQ(install_with(release, kOps / "torch_good", 3), "installed");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  EXPECT_EQ(status_of("good"), "ok") << detail_of("good");
  EXPECT_EQ(status_of("own_path"), "ok") << detail_of("own_path");
  EXPECT_THAT(detail_of("crash"), StartsWith("SIGABRT in its self-test"));
  EXPECT_EQ(detail_of("crash_on_load"), "SIGABRT while it was loaded: the last words");
  EXPECT_EQ(detail_of("exit_on_load"), "it ended its process with exit code 0 while it was loaded");
  EXPECT_EQ(detail_of("hang"), "no answer within 3 s in its self-test");
  EXPECT_EQ(status_of("wrong"), "wrong");
  EXPECT_EQ(detail_of("wrong"), "element 3 is 1.5, the reference 1.25");
  EXPECT_EQ(status_of("skipped"), "skipped");
  EXPECT_EQ(status_of("garbage"), "wrong") << "what an op prints forges no answer";
  EXPECT_EQ(detail_of("garbage"), "two lines");
  EXPECT_EQ(status_of("forge"), "wrong");
  EXPECT_EQ(detail_of("forge"), "it was caught");
  EXPECT_EQ(status_of("no_test"), "incompatible");
  EXPECT_EQ(status_of("missing"), "missing");
  EXPECT_EQ(detail_of("missing"), "libds_absent.so is not on this node");
  for (const char* op : {"undefined", "undefined_torch"}) {
    EXPECT_EQ(status_of(op), "incompatible") << op;
    EXPECT_THAT(detail_of(op), HasSubstr("c10::Tensor::data()"));
  }
}

// The ops come in the order of their names: some before and some after the one that strikes.
TEST_F(SharedLoadTest, An_op_that_kills_or_stops_the_process_it_came_from_spoils_no_other) {
  for (const char* how : {"kill", "stop"}) {
    TestRelease release = with_torch({how, "skipped", "forge", "wrong"});
    ASSERT_EQ(install_with(release, kOps / "torch_good", 2), "installed") << how;
    EXPECT_EQ(status_of("good"), "ok") << how << detail_of("good");
    EXPECT_EQ(status_of(how), "ok") << how << " alone there is nothing that it strikes";
    EXPECT_EQ(status_of("forge"), "wrong") << how;
    EXPECT_EQ(status_of("skipped"), "skipped") << how;
    EXPECT_EQ(detail_of("wrong"), "element 3 is 1.5, the reference 1.25") << how;
  }
}

TEST_F(SharedLoadTest, A_hung_op_is_gone_with_all_that_it_started) {
  TestRelease release = with_torch({"hang"});
  ASSERT_EQ(install_with(release, kOps / "torch_good", 1), "installed");
  EXPECT_EQ(detail_of("hang"), "no answer within 1 s in its self-test");
  EXPECT_EQ(loads(), 1) << "a deadline is not waited for twice";
  // Its processes are the only ones that have this library of this prefix mapped.
  std::string library = (prefix_ / "releases" / release.id() / "lib/libds_hang.so").string();
  for (const auto& entry : fs::directory_iterator("/proc")) {
    EXPECT_THAT(slurp(entry.path() / "maps"), ::testing::Not(HasSubstr(library))) << entry.path();
  }
}

TEST_F(SharedLoadTest, A_torch_that_is_no_library_is_named) {
  fs::path torch = folder_.path() / "torch";
  fs::create_directory(torch);
  write(torch / "libtorch_cpu.so", std::string(5000, 'x'));
  TestRelease release = with_torch({"skipped"});
  release.add_op("without", kOps / "libds_good.so");
  ASSERT_EQ(install_with(release, torch), "installed");
  for (const char* op : {"good", "skipped"}) {
    EXPECT_EQ(status_of(op), "incompatible");
    EXPECT_THAT(detail_of(op), HasSubstr((torch / "libtorch_cpu.so").string()));
    EXPECT_THAT(detail_of(op), HasSubstr("invalid ELF header"));
  }
}

TEST_F(SharedLoadTest, A_torch_that_crashes_or_hangs_is_each_op_s_own_fault_and_no_other_s) {
  TestRelease release = with_torch({"skipped"});
  release.add_op("no_test", kOps / "libds_no_test.so");  // Needs no torch.
  ASSERT_EQ(install_with(release, kOps / "torch_crash"), "installed");
  for (const char* op : {"good", "skipped"}) {
    EXPECT_EQ(detail_of(op), "SIGABRT while it was loaded: torch dies");
  }
  EXPECT_THAT(detail_of("no_test"), HasSubstr("ds_self_test_no_test"));
  ASSERT_EQ(install_with(release, kOps / "torch_hang", 1), "up-to-date");
  for (const char* op : {"good", "skipped"}) {
    EXPECT_EQ(detail_of(op), "no answer within 1 s while it was loaded");
  }
  EXPECT_THAT(detail_of("no_test"), HasSubstr("ds_self_test_no_test"));
}

TEST_F(SharedLoadTest, A_torch_that_lacks_a_symbol_is_incompatible_as_it_is_for_an_op_alone) {
  ASSERT_EQ(install_with(with_torch({"skipped"}), kOps / "torch_undefined"), "installed");
  for (const char* op : {"good", "skipped"}) {
    EXPECT_EQ(status_of(op), "incompatible");
    EXPECT_THAT(detail_of(op), HasSubstr("libtorch_cpu.so needs the symbol c10::Error::~Error()"));
  }
}

TEST_F(SharedLoadTest, Nothing_is_forked_from_a_process_with_threads_or_open_files) {
  for (const char* torch : {"torch_thread", "torch_open"}) {
    fs::remove(loads_);
    fs::remove_all(prefix_);
    ASSERT_EQ(install_with(with_torch({"skipped"}), kOps / torch), "installed");
    EXPECT_EQ(status_of("good"), "ok") << torch;
    EXPECT_EQ(status_of("skipped"), "skipped") << torch;
    EXPECT_EQ(loads(), 3) << torch << ": once in vain, and once for each";
  }
}

}  // namespace
}  // namespace dsi::testing

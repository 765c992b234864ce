// What an install may say of an op without loading it again.
#include "orchestrator/agent/remembered.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "tests/agent/fixture.h"

namespace dsi::testing {
namespace {

namespace fs = std::filesystem;
using agent::Circumstances;
using agent::Remembered;
using agent::Stamp;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

Remembered two_ops() {
  Remembered all;
  all.circumstances = {{"boot", "b1"}, {"library_path", ""}};
  all.stamps = {{"/a", {1, 2, 3, 4, 5}}, {"/b", {1, 3, 3, 4, 5}}, {"/absent", {}}};
  all.ops = {{"x", "cpu", "fine", "2026-01-01T00:00:00Z", {"/a", "/absent"}},
             {"y", "cpu", "", "2026-01-02T00:00:00Z", {"/b"}}};
  return all;
}

std::vector<std::string> names(const std::vector<agent::RememberedOp>& ops) {
  std::vector<std::string> all;
  for (const auto& op : ops) all.push_back(op.op);
  return all;
}

TEST(Remembered, Is_true_while_nothing_has_changed) {
  Remembered all = two_ops();
  auto at = [&](const std::string& path) { return all.stamps.at(path); };
  EXPECT_THAT(names(still_true(all, all.circumstances, at)), ElementsAre("x", "y"));
  auto rows = agent::rows_of(all.ops);
  EXPECT_EQ(rows[0].detail, "fine; as on 2026-01-01T00:00:00Z, nothing it loads has changed");
  EXPECT_EQ(rows[1].detail, "as on 2026-01-02T00:00:00Z, nothing it loads has changed");
}

TEST(Remembered, Any_change_of_a_file_makes_its_ops_void_and_no_others) {
  const Remembered all = two_ops();
  auto with = [&](const std::string& changed, Stamp stamp) {
    return names(still_true(all, all.circumstances, [&](const std::string& path) {
      return path == changed ? stamp : all.stamps.at(path);
    }));
  };
  for (Stamp stamp : {Stamp{9, 2, 3, 4, 5}, Stamp{1, 9, 3, 4, 5}, Stamp{1, 2, 9, 4, 5},
                      Stamp{1, 2, 3, 9, 5}, Stamp{1, 2, 3, 4, 9}, Stamp{}}) {
    EXPECT_THAT(with("/a", stamp), ElementsAre("y"));
  }
  EXPECT_THAT(with("/absent", {1, 1, 1, 1, 1}), ElementsAre("y")) << "a file has appeared";
}

TEST(Remembered, Any_change_of_the_circumstances_makes_all_void) {
  Remembered all = two_ops();
  auto at = [&](const std::string& path) { return all.stamps.at(path); };
  for (Circumstances now : {Circumstances{{"boot", "b2"}, {"library_path", ""}},
                            Circumstances{{"boot", "b1"}, {"library_path", "/torch"}},
                            Circumstances{{"boot", "b1"}}, Circumstances{}}) {
    EXPECT_THAT(still_true(all, now, at), IsEmpty());
  }
  all.circumstances["boot"] = "";
  EXPECT_THAT(still_true(all, all.circumstances, at), IsEmpty()) << "unknown is not the same";
}

TEST(Remembered, Finds_what_it_rests_on) {
  Circumstances here = agent::find_circumstances("id", "/torch");
  for (const char* key : {"boot", "kernel", "processor", "environment", "user", "release"}) {
    EXPECT_FALSE(here[key].empty()) << key;
  }
  EXPECT_EQ(here, agent::find_circumstances("id", "/torch"));
  ::setenv("SSH_CLIENT", "::1 12345 22", 1);
  EXPECT_EQ(here, agent::find_circumstances("id", "/torch")) << "another connection";
  ::unsetenv("SSH_CLIENT");
  ::setenv("SUDO_COMMAND", "/bin/sh -c 'a folder of this run'", 1);
  EXPECT_EQ(here, agent::find_circumstances("id", "/torch")) << "another call of sudo";
  ::unsetenv("SUDO_COMMAND");
  ::setenv("LD_PRELOAD_OF_TEST", "x", 1);
  EXPECT_NE(here, agent::find_circumstances("id", "/torch"));
  ::unsetenv("LD_PRELOAD_OF_TEST");
  EXPECT_NE(here, agent::find_circumstances("other", "/torch"));
}

TEST(Remembered, A_folder_is_known_by_the_names_in_it) {
  TemporaryFolder folder;
  for (const char* name : {"one", "same", "other"}) fs::create_directory(folder.path() / name);
  auto identity = [&](const char* name) { return agent::stamp_of(folder.path() / name).identity; };
  EXPECT_EQ(identity("one"), identity("same"));
  std::ofstream(folder.path() / "one/a") << "1";
  std::ofstream(folder.path() / "same/a") << "2";
  std::ofstream(folder.path() / "other/b") << "1";
  EXPECT_EQ(identity("one"), identity("same"));
  EXPECT_NE(identity("one"), identity("other"));
  EXPECT_NE(identity("one/a"), identity("same/a")) << "and a file by its inode";
}

// Exit code 0: the stamp of a folder on an overlay is the same after the kernel has dropped what it
// had in its caches of that file system, although the number of the folder is not; 77: there can be
// no overlay; 78: its numbers stay, so that nothing was tried.
int stamp_a_folder_on_an_overlay(const fs::path& at) {
  if (::unshare(CLONE_NEWNS) != 0 ||
      ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("dsi", (at / "up").c_str(), "tmpfs", 0, nullptr) != 0) {
    return 77;
  }
  fs::create_directory(at / "up/upper");
  fs::create_directory(at / "up/work");
  const std::string options = "lowerdir=" + (at / "lower").string() +
                              ",upperdir=" + (at / "up/upper").string() +
                              ",workdir=" + (at / "up/work").string();
  const std::string merged = at / "merged";
  if (::mount("dsi", merged.c_str(), "overlay", 0, options.c_str()) != 0) return 77;
  const std::string inner = merged + "/folder";
  struct stat first {};
  struct stat second {};
  ::stat(inner.c_str(), &first);
  const Stamp before = agent::stamp_of(inner);
  if (::mount("dsi", merged.c_str(), "overlay", MS_REMOUNT, options.c_str()) != 0) return 77;
  // Numbers are given in the order in which folders are met.
  ::stat((merged + "/another").c_str(), &second);
  ::stat(inner.c_str(), &second);
  if (first.st_ino == second.st_ino) return 78;
  return before != Stamp{} && agent::stamp_of(inner) == before ? 0 : 1;
}

TEST(Remembered, A_folder_on_an_overlay_is_the_same_after_the_kernel_has_forgotten_it) {
  TemporaryFolder folder;
  for (const char* name : {"lower/folder", "lower/another", "up", "merged"}) {
    fs::create_directories(folder.path() / name);
  }
  std::ofstream(folder.path() / "lower/folder/file") << "x";
  pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(stamp_a_folder_on_an_overlay(folder.path()));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  int code = WEXITSTATUS(status);
  if (code == 77) GTEST_SKIP() << "no overlay can be mounted here";
  if (code == 78) GTEST_SKIP() << "this kernel's overlays keep the numbers of folders";
  EXPECT_EQ(code, 0);
}

TEST(Remembered, Files_that_decide_what_is_loaded) {
  auto files = agent::relevant_files(
      {"/t/lib/libtorch.so", "/p/releases/1/lib/libds_x.so"},
      "/t/lib:", [](const std::string& path) { return path.starts_with("/p/"); });
  for (const char* file : {"/etc/ld.so.cache", "/etc/ld.so.preload", "/t/lib", "/t/lib/libtorch.so",
                           "/t/lib/glibc-hwcaps/x86-64-v3", "/p/releases/1/lib"}) {
    EXPECT_THAT(files, ::testing::Contains(file));
  }
  EXPECT_THAT(files, Not(::testing::Contains("/p/releases/1/lib/libds_x.so")));
}

TEST(Remembered, A_file_that_changed_just_now_is_none_to_build_on) {
  auto start = std::chrono::system_clock::now();
  auto at = [&](std::chrono::milliseconds before) {
    auto time = std::chrono::nanoseconds((start - before).time_since_epoch()).count();
    return [time](const std::string&) { return Stamp{1, 1, 1, time, time}; };
  };
  using std::chrono::milliseconds;
  EXPECT_TRUE(agent::are_settled({"/a"}, start, at(milliseconds(5000))));
  EXPECT_FALSE(agent::are_settled({"/a"}, start, at(milliseconds(500))));
  EXPECT_FALSE(agent::are_settled({"/a"}, start, at(milliseconds(-100))));
  EXPECT_TRUE(agent::are_settled({}, start, at(milliseconds(0))));
}

TEST(Remembered, Is_read_as_written_and_anything_else_is_nothing) {
  Remembered all = two_ops();
  std::string text = agent::to_json(all);
  auto again = agent::parse_remembered(text);
  ASSERT_TRUE(again);
  EXPECT_EQ(agent::to_json(*again), text);
  EXPECT_EQ(again->stamps, all.stamps);
  EXPECT_EQ(again->ops[0].files, all.ops[0].files);

  auto but = [&](const std::string& pointer, nlohmann::json value) {
    nlohmann::json changed = nlohmann::json::parse(text);
    changed[nlohmann::json::json_pointer(pointer)] = std::move(value);
    return changed.dump();
  };
  for (const std::string& bad :
       {std::string(), std::string("{"), std::string("[]"), text.substr(0, text.size() / 2),
        but("/schema", 2), but("/ops/0/files/0", 17), but("/ops/0/files/0", -1),
        but("/ops/0/files", nlohmann::json::array()), but("/files/0", {"/a", 1}),
        but("/files/0/1", "x"), but("/circumstances", 5), but("/ops/0/time", nullptr)}) {
    EXPECT_FALSE(agent::parse_remembered(bad)) << bad;
  }
}

class RecallTest : public AgentTest {
 protected:
  void SetUp() override {
    ::setenv("DSI_TEST_RUNS", runs_.c_str(), 1);
    fs::create_directory(torch_);
    fs::copy(kOps / "torch_good/libtorch_cpu.so", torch_);
    let_settle();
    request_.torch_folders = {torch_.string()};
    release_ = make_release("1");
    ManifestOp& op = release_.add_op("counted", kOps / "with_torch/libds_counted.so");
    op.needs_libraries = {"libtorch_cpu.so", "libc.so.6"};
  }
  void TearDown() override { ::unsetenv("DSI_TEST_RUNS"); }

  // What has changed within the last two seconds is not built on.
  static void let_settle() { std::this_thread::sleep_for(std::chrono::milliseconds(2100)); }
  // How often the op's self-test has run.
  long runs() const {
    std::string text = slurp(runs_);
    return std::count(text.begin(), text.end(), '\n');
  }
  std::string install_it() { return install(release_, request_); }

  fs::path runs_ = folder_.path() / "runs";
  fs::path torch_ = folder_.path() / "torch";
  TestRelease release_;
  protocol::InstallRequest request_;
};

TEST_F(RecallTest, An_install_that_finds_nothing_to_do_runs_no_op_again_and_says_so) {
  ASSERT_EQ(install_it(), "installed");
  EXPECT_EQ(runs(), 1);
  EXPECT_EQ(detail_of("counted"), "counted");
  auto before = snapshot(prefix_);
  ASSERT_EQ(install_it(), "up-to-date");
  EXPECT_EQ(runs(), 1);
  EXPECT_EQ(status_of("counted"), "ok");
  EXPECT_THAT(
      detail_of("counted"),
      ::testing::MatchesRegex("counted; as on 20..-..-..T..:..:..Z, nothing it loads has changed"));
  EXPECT_THAT(detail_of("good"), ::testing::StartsWith("as on "));
  EXPECT_EQ(snapshot(prefix_), before) << "and it writes nothing";
}

TEST_F(RecallTest, Report_rollback_upgrade_and_repair_always_run_it) {
  ASSERT_EQ(install_it(), "installed");
  Head head(DSI_AGENT, prefix_);
  head.send("report", protocol::ReportRequest{request_.torch_folders, 60});
  auto reported = head.result();
  ASSERT_TRUE(reported);
  EXPECT_EQ(runs(), 2);
  for (const auto& row : reported->ops) EXPECT_THAT(row.detail, Not(HasSubstr("as on")));
  ASSERT_EQ(install_it(), "up-to-date");
  EXPECT_EQ(runs(), 2);

  fs::remove(prefix_ / "current/python/ds/same.py");
  ASSERT_EQ(install_it(), "repaired");
  EXPECT_EQ(runs(), 3);
  EXPECT_THAT(detail_of("counted"), Not(HasSubstr("as on")));

  release_.add_file("python/ds/new.py", "new");
  ASSERT_EQ(install_it(), "installed");
  EXPECT_EQ(runs(), 4) << "the same library in another release";
  head.send("rollback", protocol::RollbackRequest{"r", "b", request_.torch_folders, 60, 30});
  ASSERT_EQ(head.result()->result, "rolled-back");
  EXPECT_EQ(runs(), 5);
  // It is the other release's that is remembered.
  release_ = make_release("1");
  release_.add_op("counted", kOps / "with_torch/libds_counted.so").needs_libraries = {
      "libtorch_cpu.so", "libc.so.6"};
  ASSERT_EQ(install_it(), "up-to-date");
  EXPECT_EQ(runs(), 6);
}

TEST_F(RecallTest, Any_change_of_what_it_loads_makes_it_run) {
  ASSERT_EQ(install_it(), "installed");
  auto expect_a_run_after = [&](const char* what, auto change) {
    let_settle();
    ASSERT_EQ(install_it(), "up-to-date");
    long before = runs();
    ASSERT_EQ(install_it(), "up-to-date");
    ASSERT_EQ(runs(), before) << "before: " << what;
    change();
    ASSERT_EQ(install_it(), "up-to-date");
    EXPECT_EQ(runs(), before + 1) << what;
    EXPECT_EQ(detail_of("counted"), "counted") << what;
  };
  expect_a_run_after("its time", [&] {
    fs::last_write_time(torch_ / "libtorch_cpu.so", fs::file_time_type::clock::now());
  });
  expect_a_run_after("another file by rename, as old as the one before", [&] {
    auto time = fs::last_write_time(torch_ / "libtorch_cpu.so");
    fs::copy_file(torch_ / "libtorch_cpu.so", folder_.path() / "new.so");
    fs::last_write_time(folder_.path() / "new.so", time);
    fs::rename(folder_.path() / "new.so", torch_ / "libtorch_cpu.so");
  });
  expect_a_run_after("a new file in the loader's search path",
                     [&] { write(torch_ / "libgomp.so.1", "not even a library"); });
  expect_a_run_after("the environment", [] { ::setenv("DSI_TEST_CHANGE", "1", 1); });
  ::unsetenv("DSI_TEST_CHANGE");
  expect_a_run_after("a link to another folder with the same files", [&] {
    fs::path other = folder_.path() / "other";
    fs::copy(torch_, other);
    fs::rename(torch_, folder_.path() / "old");
    fs::create_directory_symlink(other, torch_);
  });
  expect_a_run_after("a damaged record",
                     [&] { write(prefix_ / "probes.json", "{\"schema\": 1}"); });
}

TEST_F(RecallTest, What_changed_while_or_just_before_it_was_loaded_is_not_remembered) {
  fs::last_write_time(torch_ / "libtorch_cpu.so", fs::file_time_type::clock::now());
  ASSERT_EQ(install_it(), "installed");
  ASSERT_EQ(install_it(), "up-to-date");
  EXPECT_EQ(runs(), 2);
}

TEST_F(RecallTest, Only_what_was_ok_on_a_processor_is_remembered) {
  release_.manifest.ops[0].devices = {"cpu", "cuda"};
  release_.add_op("wrong", kOps / "libds_wrong.so");
  ASSERT_EQ(install_it(), "installed");
  ASSERT_EQ(install_it(), "up-to-date");
  ASSERT_EQ(last_.ops.size(), 4u);
  EXPECT_THAT(last_.ops[0].detail, HasSubstr("as on"));
  EXPECT_EQ(last_.ops[1].device, "cuda");
  EXPECT_THAT(last_.ops[1].detail, Not(HasSubstr("as on")));
  EXPECT_EQ(detail_of("wrong"), "element 3 is 1.5, the reference 1.25");
  EXPECT_THAT(slurp(prefix_ / "probes.json"), Not(HasSubstr("\"wrong\"")));
}

}  // namespace
}  // namespace dsi::testing

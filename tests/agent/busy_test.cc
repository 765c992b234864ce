// Processes that have files of the release that an install, a rollback or an uninstall leaves.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "tests/agent/fixture.h"

namespace dsi::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// Another process with a file: mapped and closed, as a loader leaves a library, or as its working
// folder.
class Process {
 public:
  enum class Way { kMaps, kOpens, kWorksIn };
  Process(Way way, const fs::path& path) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) std::abort();
    pid_ = ::fork();
    if (pid_ == 0) {
      bool good = true;
      if (way == Way::kWorksIn) {
        good = ::chdir(path.c_str()) == 0;
      } else {
        int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
        good = fd >= 0;
        if (way == Way::kMaps) {
          good = good && ::mmap(nullptr, 1, PROT_READ, MAP_PRIVATE, fd, 0) != MAP_FAILED;
          ::close(fd);
        }
      }
      (void)!::write(ends[1], good ? "y" : "n", 1);
      for (;;) ::pause();
    }
    char answer = 'n';
    (void)!::read(ends[0], &answer, 1);
    EXPECT_EQ(answer, 'y') << path;
    ::close(ends[0]);
    ::close(ends[1]);
  }
  ~Process() { end(); }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void end() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

class BusyTest : public AgentTest {
 protected:
  static protocol::InstallRequest with(const std::string& busy, int limit_s = 60) {
    protocol::InstallRequest request;
    request.care = {busy, limit_s};
    return request;
  }
  fs::path file_of(const TestRelease& release) const {
    return prefix_ / "releases" / release.id() / "python/ds/version.py";
  }
  bool is_there(const TestRelease& release) const {
    return fs::exists(prefix_ / "releases" / release.id() / "manifest.json");
  }

  TestRelease one_ = make_release("1");
  TestRelease two_ = make_release("2");
};

TEST_F(BusyTest, A_release_that_a_process_maps_is_replaced_named_and_kept_until_the_process_ends) {
  ASSERT_EQ(install(one_), "installed");
  Process user(Process::Way::kMaps, file_of(one_));
  ASSERT_EQ(install(two_), "installed") << last_.error.what;
  ASSERT_THAT(last_.processes, SizeIs(1));
  EXPECT_EQ(last_.processes[0].pid, user.pid());
  EXPECT_EQ(last_.processes[0].release, one_.id());
  EXPECT_THAT(last_.processes[0].command, HasSubstr("agent_tests"));
  EXPECT_NE(last_.processes[0].user, "");

  // Neither current nor previous, and still there.
  TestRelease three = make_release("3");
  ASSERT_EQ(install(three), "installed");
  EXPECT_THAT(last_.processes, IsEmpty()) << "nobody has files of the one that was left";
  EXPECT_TRUE(is_there(one_));
  EXPECT_TRUE(is_there(two_));
  expect_consistent(prefix_);

  user.end();
  ASSERT_EQ(install(make_release("4")), "installed");
  EXPECT_FALSE(is_there(one_));
  EXPECT_FALSE(is_there(two_));
  EXPECT_TRUE(is_there(three));
  expect_consistent(prefix_);
}

TEST_F(BusyTest, Skip_leaves_the_host_as_it_is) {
  ASSERT_EQ(install(one_), "installed");
  Process user(Process::Way::kOpens, file_of(one_));
  auto before = snapshot(prefix_);
  EXPECT_EQ(install(two_, with("skip")), "busy");
  EXPECT_EQ(files_sent_, 0u);
  EXPECT_THAT(last_.error.what, HasSubstr(std::to_string(user.pid())));
  EXPECT_THAT(last_.error.what, HasSubstr("has files of release " + one_.id()));
  EXPECT_THAT(last_.processes, SizeIs(1));
  EXPECT_EQ(last_.to, one_.id());
  EXPECT_EQ(snapshot(prefix_), before);
  // What is there already is nobody's loss.
  EXPECT_EQ(install(one_, with("skip")), "up-to-date");
  user.end();
  EXPECT_EQ(install(two_, with("skip")), "installed");
}

TEST_F(BusyTest, Wait_goes_on_when_they_have_ended) {
  ASSERT_EQ(install(one_), "installed");
  Process user(Process::Way::kWorksIn, file_of(one_).parent_path());
  Head head(DSI_AGENT, prefix_);
  head.on_stage([&](const std::string& stage) {
    if (stage == "busy") {
      EXPECT_EQ(current(prefix_), one_.id());
      user.end();
    }
  });
  auto result = head.install(two_, with("wait"));
  ASSERT_TRUE(result);
  EXPECT_EQ(result->result, "installed") << result->error.what;
  EXPECT_THAT(head.stages(), Contains("busy"));
  EXPECT_THAT(result->processes, IsEmpty());
  EXPECT_EQ(current(prefix_), two_.id());
}

TEST_F(BusyTest, Wait_that_has_waited_long_enough_leaves_the_host_as_it_was) {
  ASSERT_EQ(install(one_), "installed");
  Process user(Process::Way::kMaps, file_of(one_));
  auto before = snapshot(prefix_);
  EXPECT_EQ(install(two_, with("wait", 1)), "busy");
  EXPECT_THAT(last_.error.help, HasSubstr("did not end within 1 s"));
  EXPECT_EQ(snapshot(prefix_), before);
}

TEST_F(BusyTest, A_head_that_leaves_while_it_waits_leaves_the_old_release) {
  ASSERT_EQ(install(one_), "installed");
  Process user(Process::Way::kMaps, file_of(one_));
  {
    Head head(DSI_AGENT, prefix_);
    head.on_stage([&](const std::string& stage) {
      if (stage == "busy") head.leave();
    });
    EXPECT_FALSE(head.install(two_, with("wait")));
    head.wait();
  }
  EXPECT_EQ(current(prefix_), one_.id());
  EXPECT_FALSE(is_there(two_));
  EXPECT_THAT(leftovers(prefix_), IsEmpty());
}

TEST_F(BusyTest, Rollback_and_uninstall_spare_a_busy_host_too) {
  ASSERT_EQ(install(one_), "installed");
  ASSERT_EQ(install(two_), "installed");
  Process user(Process::Way::kMaps, file_of(two_));
  auto before = snapshot(prefix_);
  Head head(DSI_AGENT, prefix_);
  protocol::RollbackRequest rollback{"run-r", "tester@head", {}, 60, 30};
  rollback.care.busy = "skip";
  head.send("rollback", rollback);
  auto result = head.result();
  ASSERT_TRUE(result);
  EXPECT_EQ(result->result, "busy");
  protocol::UninstallRequest uninstall{"run-u", "tester@head", 30};
  uninstall.care.busy = "skip";
  head.send("uninstall", uninstall);
  result = head.result();
  ASSERT_TRUE(result);
  EXPECT_EQ(result->result, "busy");
  EXPECT_EQ(result->to, two_.id());
  EXPECT_EQ(snapshot(prefix_), before);
}

TEST_F(BusyTest, A_process_of_another_prefix_is_none_of_its_business) {
  ASSERT_EQ(install(one_), "installed");
  fs::path other = folder_.path() / "ds ops 2";
  fs::create_directories(other / "releases" / one_.id());
  write(other / "releases" / one_.id() / "file", "x");
  Process user(Process::Way::kMaps, other / "releases" / one_.id() / "file");
  EXPECT_EQ(install(two_, with("skip")), "installed");
}

}  // namespace
}  // namespace dsi::testing

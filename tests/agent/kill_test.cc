// kill -9 at every point at which a run changes something: strace kills the agent as it enters the
// N-th call of each kind, for every N until there are no more. Between two such calls nothing on
// the disk differs, so this is every point.

#include <sys/wait.h>

#include <csignal>
#include <cstdlib>
#include <fstream>

#include "tests/agent/fixture.h"

namespace dsi::testing {
namespace {

namespace fs = std::filesystem;

const char* const kCalls[] = {"mkdir",    "mkdirat", "linkat", "renameat",  "rename", "symlinkat",
                              "unlinkat", "fsync",   "fchmod", "ftruncate", "write",  "rmdir"};

std::string joined_calls() {
  std::string all;
  for (const char* call : kCalls) all += (all.empty() ? "" : ",") + std::string(call);
  return all;
}

class KillTest : public AgentTest {
 protected:
  void SetUp() override {
    if (DSI_SANITIZED) GTEST_SKIP() << "a sanitizer's own tracing collides with strace";
    if (std::system("strace -o /dev/null true 2>/dev/null") != 0) {
      GTEST_SKIP() << "strace is not here, or may not trace";
    }
  }

  // How often each call is made in a run that nobody kills.
  std::map<std::string, int> count_calls(const std::function<void(Head&)>& act) {
    auto log = folder_.path() / "trace";
    {
      Head head(DSI_AGENT, prefix_,
                {{"strace", "-qq", "-e", "signal=none", "-o", log.string(), "-e",
                  "trace=" + joined_calls()},
                 {}});
      act(head);
      head.leave();
      head.wait();
    }
    std::map<std::string, int> counts;
    std::ifstream lines(log);
    for (std::string line; std::getline(lines, line);) ++counts[line.substr(0, line.find('('))];
    return counts;
  }

  // `start`: what the prefix is before. `act` is killed everywhere; then the prefix must be what
  // `check` says and `recover` must work.
  int kill_everywhere(const fs::path& start, const std::function<void(Head&)>& act,
                      const std::function<void(const std::string& where)>& check) {
    copy_prefix(start);
    int killed = 0;
    for (const auto& [call, count] : count_calls(act)) {
      for (int n = 1; n <= count; ++n) {
        copy_prefix(start);
        int status = 0;
        {
          Head head(DSI_AGENT, prefix_,
                    {{"strace", "-qq", "-o", "/dev/null", "-e", "trace=" + call, "-e",
                      fmt::format("inject={}:signal=SIGKILL:when={}", call, n)},
                     {}});
          if (head.connected()) act(head);
          head.leave();
          status = head.wait();
        }
        // strace ends as its program did.
        killed += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL ? 1 : 0;
        check(fmt::format("{} number {}", call, n));
        if (HasFailure()) return killed;
      }
    }
    return killed;
  }
};

TEST_F(KillTest, An_upgrade_killed_anywhere_leaves_the_old_release_or_the_new) {
  TestRelease one = make_release("1");
  TestRelease two = make_release("2");
  TestRelease three = make_release("3");
  two.add_file("bin/tool", "#!/bin/sh\n", 0755);
  ASSERT_EQ(install(one), "installed");
  ASSERT_EQ(install(two), "installed");
  fs::path start = folder_.path() / "start";
  fs::rename(prefix_, start);

  int old_ones = 0;
  int new_ones = 0;
  int killed = kill_everywhere(
      start, [&](Head& head) { head.install(three); },
      [&](const std::string& where) {
        SCOPED_TRACE(where);
        std::string now = current(prefix_);
        EXPECT_TRUE(now == two.id() || now == three.id()) << now;
        (now == two.id() ? old_ones : new_ones)++;
        expect_consistent(prefix_);
        std::string expected = now == two.id() ? "installed" : "up-to-date";
        EXPECT_EQ(install(three), expected) << last_.error.what;
        EXPECT_EQ(leftovers(prefix_), std::vector<std::string>{});
        Head head(DSI_AGENT, prefix_);
        EXPECT_EQ(head.hello().facts.previous, two.id()) << "the way back is known";
      });
  RecordProperty("killed", killed);
  std::printf("killed %d times: %d left the old release, %d the new\n", killed, old_ones, new_ones);
  EXPECT_GT(killed, 40);
  EXPECT_GT(old_ones, 20);
  EXPECT_GT(new_ones, 5);
}

TEST_F(KillTest, A_first_install_killed_anywhere_leaves_nothing_or_the_release) {
  TestRelease one = make_release("1");
  int killed = kill_everywhere(
      folder_.path() / "nothing", [&](Head& head) { head.install(one); },
      [&](const std::string& where) {
        SCOPED_TRACE(where);
        std::string now = current(prefix_);
        EXPECT_TRUE(now.empty() || now == one.id()) << now;
        expect_consistent(prefix_);
        EXPECT_EQ(install(one), now.empty() ? "installed" : "up-to-date") << last_.error.what;
        EXPECT_EQ(leftovers(prefix_), std::vector<std::string>{});
      });
  EXPECT_GT(killed, 20);
}

TEST_F(KillTest, A_rollback_and_a_repair_killed_anywhere_can_be_done_again) {
  TestRelease one = make_release("1");
  TestRelease two = make_release("2");
  ASSERT_EQ(install(one), "installed");
  ASSERT_EQ(install(two), "installed");
  fs::path start = folder_.path() / "start";
  fs::rename(prefix_, start);
  kill_everywhere(
      start, [&](Head& head) { head.rollback(); },
      [&](const std::string& where) {
        SCOPED_TRACE(where);
        std::string now = current(prefix_);
        EXPECT_TRUE(now == two.id() || now == one.id()) << now;
        expect_consistent(prefix_);
        Head head(DSI_AGENT, prefix_);
        EXPECT_EQ(head.hello().facts.previous, now == one.id() ? two.id() : one.id());
      });

  write(start / "current/lib/libds_good.so", "");
  write(start / "current/python/ds/version.py", "version = 'x'\n");
  int killed = kill_everywhere(
      start, [&](Head& head) { head.install(two); },
      [&](const std::string& where) {
        SCOPED_TRACE(where);
        EXPECT_EQ(current(prefix_), two.id());
        std::string again = install(two);
        EXPECT_TRUE(again == "repaired" || again == "up-to-date") << again << last_.error.what;
        Head head(DSI_AGENT, prefix_);
        auto report = head.report();
        EXPECT_TRUE(report && report->error.what.empty());
      });
  EXPECT_GT(killed, 10);
}

TEST_F(KillTest, An_uninstall_killed_anywhere_leaves_no_half_release_and_can_be_done_again) {
  ASSERT_EQ(install(make_release("1")), "installed");
  ASSERT_EQ(install(make_release("2")), "installed");
  fs::path start = folder_.path() / "start";
  fs::rename(prefix_, start);
  int killed = kill_everywhere(
      start, [&](Head& head) { head.uninstall(); },
      [&](const std::string& where) {
        SCOPED_TRACE(where);
        expect_consistent(prefix_);
        Head head(DSI_AGENT, prefix_);
        auto result = head.uninstall();
        ASSERT_TRUE(result);
        EXPECT_EQ(result->result, "uninstalled") << result->error.what;
        EXPECT_FALSE(fs::exists(prefix_));
      });
  EXPECT_GT(killed, 10);
}

}  // namespace
}  // namespace dsi::testing

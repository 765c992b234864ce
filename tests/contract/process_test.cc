// The contract of ProcessRunner.

#include "orchestrator/ports/process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "orchestrator/adapters/local_process.h"
#include "tests/contract/test_sshd.h"

namespace dsi {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;

Deadline soon() {
  return Deadline::after(seconds(30));
}

// Far more than any deadline that a test sets, and less than what it would hang for: these tests
// ask whether a wait ends, not how fast a busy machine is.
constexpr double kHang = 15;

double elapsed(Deadline::Clock::time_point start) {
  return std::chrono::duration<double>(Deadline::Clock::now() - start).count();
}

Command sh(const std::string& line) {
  return {.argv = {"sh", "-c", line}, .folder = {}, .environment = {}};
}

std::size_t open_descriptors() {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

TEST(ProcessRunner, Output_error_output_and_exit_code_are_kept_apart) {
  LocalProcessRunner runner;
  auto result = runner.run(sh("echo out; echo err >&2; exit 3"), soon(), {});
  ASSERT_TRUE(result) << result.error().what;
  EXPECT_EQ(result->out, "out\n");
  EXPECT_EQ(result->err, "err\n");
  EXPECT_EQ(result->exit_code, 3);
  EXPECT_EQ(result->signal, 0);
  EXPECT_FALSE(result->ok());
}

TEST(ProcessRunner, A_program_that_is_not_there_is_an_error) {
  LocalProcessRunner runner;
  auto result = runner.run({.argv = {"no-such-program-anywhere"}, .folder = {}, .environment = {}},
                           soon(), {});
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().what, HasSubstr("no-such-program-anywhere"));
}

TEST(ProcessRunner, A_folder_that_is_not_there_is_an_error_that_names_it) {
  LocalProcessRunner runner;
  Command command = sh("true");
  command.folder = "/no/such/folder";
  auto result = runner.run(command, soon(), {});
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().what, HasSubstr("/no/such/folder"));
}

TEST(ProcessRunner, Folder_and_environment_are_what_was_asked_for) {
  LocalProcessRunner runner;
  Command command = sh("pwd; echo $DSI_TEST; echo ${HOME:+home}");
  command.folder = "/usr";
  command.environment = {{"DSI_TEST", "a value"}};
  auto result = runner.run(command, soon(), {});
  ASSERT_TRUE(result);
  EXPECT_EQ(result->out, "/usr\na value\nhome\n");
}

TEST(ProcessRunner, A_signal_is_a_result) {
  LocalProcessRunner runner;
  auto result = runner.run(sh("kill -SEGV $$"), soon(), {});
  ASSERT_TRUE(result);
  EXPECT_EQ(result->exit_code, -1);
  EXPECT_EQ(result->signal, SIGSEGV);
}

TEST(ProcessRunner, Lines_come_while_the_program_runs) {
  LocalProcessRunner runner;
  std::vector<std::string> lines;
  // The program goes on only once its first line has been heard.
  TestFolder folder;
  std::string heard = (folder.path() / "heard").string();
  auto result = runner.run(sh("echo one; while ! test -e " + heard +
                              "; do sleep 0.01; done; "
                              "printf 'two\\nthree'"),
                           soon(), {}, [&](std::string_view line) {
                             if (lines.empty()) std::ofstream(heard).put('1');
                             lines.emplace_back(line);
                           });
  ASSERT_TRUE(result);
  EXPECT_THAT(lines, ElementsAre("one", "two", "three"));
}

TEST(ProcessRunner, Standard_input_is_empty) {
  LocalProcessRunner runner;
  auto result = runner.run(sh("cat; echo end"), soon(), {});
  ASSERT_TRUE(result);
  EXPECT_EQ(result->out, "end\n");
}

TEST(ProcessRunner, Big_outputs_on_both_streams_arrive_whole) {
  LocalProcessRunner runner;
  auto result = runner.run(sh("head -c 20000000 /dev/zero & head -c 20000000 /dev/zero >&2; wait"),
                           soon(), {});
  ASSERT_TRUE(result);
  EXPECT_EQ(result->out.size(), 20'000'000u);
  EXPECT_EQ(result->err.size(), 20'000'000u);
}

TEST(ProcessRunner, The_deadline_ends_the_whole_group) {
  LocalProcessRunner runner;
  TestFolder folder;
  std::string file = (folder.path() / "pid").string();
  auto start = Deadline::Clock::now();
  auto result = runner.run(sh("sleep 60 & echo $! >" + file + "; wait"),
                           Deadline::after(milliseconds(300)), {});
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().what, HasSubstr("did not end in time"));
  EXPECT_LT(elapsed(start), kHang);
  pid_t child = std::stoi(shell("cat " + file));
  // It may be a zombie for a moment, until init has reaped it.
  std::string state;
  for (int i = 0; i < 100; ++i) {
    state = shell("cat /proc/" + std::to_string(child) + "/stat 2>/dev/null || true");
    if (state.empty() || state.find(") Z") != std::string::npos) break;
    std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_TRUE(state.empty() || state.find(") Z") != std::string::npos) << state;
}

TEST(ProcessRunner, One_that_ignores_SIGTERM_gets_SIGKILL_two_seconds_later) {
  LocalProcessRunner runner;
  auto start = Deadline::Clock::now();
  auto result = runner.run(sh("trap '' TERM; while :; do sleep 0.1; done"),
                           Deadline::after(milliseconds(200)), {});
  ASSERT_FALSE(result);
  EXPECT_GE(elapsed(start), 2.1);
  EXPECT_LT(elapsed(start), kHang);
}

TEST(ProcessRunner, A_stop_is_heard_at_once) {
  LocalProcessRunner runner;
  std::stop_source stop;
  std::jthread stopper([&] {
    std::this_thread::sleep_for(milliseconds(200));
    stop.request_stop();
  });
  auto start = Deadline::Clock::now();
  auto result = runner.run(sh("sleep 60"), soon(), stop.get_token());
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().what, HasSubstr("was interrupted"));
  EXPECT_LT(elapsed(start), kHang);
}

TEST(ProcessRunner, A_daemon_that_is_left_behind_is_not_waited_for) {
  LocalProcessRunner runner;
  auto start = Deadline::Clock::now();
  auto result = runner.run(sh("echo started; sleep 20 &"), soon(), {});
  ASSERT_TRUE(result);
  EXPECT_EQ(result->out, "started\n");
  EXPECT_LT(elapsed(start), kHang);
}

TEST(ProcessRunner, Nothing_is_left_open_and_no_zombie_stays) {
  LocalProcessRunner runner;
  ASSERT_TRUE(runner.run(sh("true"), soon(), {}));
  std::size_t before = open_descriptors();
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(runner.run(sh("echo x; echo y >&2"), soon(), {}));
  EXPECT_FALSE(runner.run(sh("sleep 60"), Deadline::after(milliseconds(10)), {}));
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

TEST(ProcessRunner, A_program_gets_no_descriptor_of_ours) {
  LocalProcessRunner runner;
  int leaky = ::dup(1);  // Without close-on-exec, as a careless library would.
  auto result = runner.run(sh("ls /proc/self/fd"), soon(), {});
  ::close(leaky);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->out, "0\n1\n2\n3\n");  // 3 is ls's own, for the folder.
}

TEST(ProcessRunner, Many_threads_run_many_programs) {
  LocalProcessRunner runner;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&runner, i] {
      for (int j = 0; j < 10; ++j) {
        auto result = runner.run(sh("exit " + std::to_string(i)), soon(), {});
        ASSERT_TRUE(result);
        EXPECT_EQ(result->exit_code, i);
      }
    });
  }
}

}  // namespace
}  // namespace dsi

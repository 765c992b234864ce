#include "orchestrator/drain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "orchestrator/adapters/local_process.h"
#include "orchestrator/base/file.h"
#include "temp_folder.h"

namespace dsi {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

class CommandDrainTest : public testing::Test {
 protected:
  std::unique_ptr<Drain> make(const std::string& take, const std::string& give_back) {
    return make_command_drain(take, give_back, "run-1", 60s, processes_, stop_.get_token());
  }
  std::string file(const std::string& name) const { return (folder_.path() / name).string(); }
  // Looks until `good` holds for the one host, a minute at most.
  Drain::Standing look_until(Drain& drain, const std::string& host,
                             const std::function<bool(const Drain::Standing&)>& good) {
    for (int i = 0; i < 6000; ++i) {
      auto standings = drain.look({host});
      if (standings && good(standings->front())) return standings->front();
      std::this_thread::sleep_for(10ms);
    }
    ADD_FAILURE() << host << " never stands as it should";
    return {};
  }
  static bool is_idle(const Drain::Standing& standing) { return standing.idle; }
  static bool has_error(const Drain::Standing& standing) { return !standing.error.what.empty(); }

  TempFolder folder_;
  LocalProcessRunner processes_;
  std::stop_source stop_;
};

TEST_F(CommandDrainTest, A_host_is_idle_when_its_own_command_has_ended) {
  auto drain = make("test $DSI_HOST = free || while ! test -e " + file("end") +
                        "; do sleep 0.05; done; echo take $DSI_HOST $DSI_RUN >>" + file("log"),
                    "echo give $DSI_HOST >>" + file("log"));
  EXPECT_EQ(drain->take({"busy", "free"}).size(), 2u);
  look_until(*drain, "free", is_idle);
  EXPECT_FALSE(drain->look({"busy"})->front().idle);
  EXPECT_TRUE(drain->give_back({"free"}).front());
  EXPECT_EQ(read_file(file("log")).value_or(""), "take free run-1\ngive free\n");
  ASSERT_TRUE(write_file_atomically(file("end"), ""));
  look_until(*drain, "busy", is_idle);
  EXPECT_TRUE(drain->give_back({"busy"}).front());
  EXPECT_EQ(read_file(file("log")).value_or(""),
            "take free run-1\ngive free\ntake busy run-1\ngive busy\n");
}

// A window that closes, say: nobody waits for the command any longer.
TEST_F(CommandDrainTest, A_command_that_still_runs_when_its_host_is_given_back_is_ended) {
  auto drain = make("echo begun >>" + file("log") + "; exec sleep 600",
                    "echo give $DSI_HOST >>" + file("log"));
  drain->take({"node1"});
  while (read_file(file("log")).value_or("").empty()) std::this_thread::sleep_for(10ms);
  auto answers = drain->give_back({"node1"});
  EXPECT_TRUE(answers.front());
  EXPECT_EQ(read_file(file("log")).value_or(""), "begun\ngive node1\n");
  EXPECT_THAT(drain->look({"node1"})->front().error.what, HasSubstr("interrupted"));
}

TEST_F(CommandDrainTest, One_that_fails_is_given_back_once_and_said) {
  auto drain = make("echo is broken; exit 3", "echo give $DSI_HOST >>" + file("log"));
  drain->take({"node1"});
  auto standing = look_until(*drain, "node1", has_error);
  EXPECT_THAT(standing.error.what, HasSubstr("ended with exit code 3: is broken"));
  EXPECT_TRUE(drain->give_back({"node1"}).front());
  EXPECT_EQ(read_file(file("log")).value_or(""), "give node1\n");
}

TEST_F(CommandDrainTest, After_a_stop_what_was_taken_is_still_given_back) {
  auto drain = make("test $DSI_HOST = fast || exec sleep 600", "echo $DSI_HOST >>" + file("log"));
  drain->take({"fast", "slow"});
  look_until(*drain, "fast", is_idle);
  stop_.request_stop();
  look_until(*drain, "slow", has_error);
  drain->give_back({"fast", "slow"});
  const std::string log = read_file(file("log")).value_or("");
  EXPECT_THAT(log, HasSubstr("fast\n"));
  EXPECT_THAT(log, HasSubstr("slow\n"));
  EXPECT_EQ(log.size(), 10u);
}

TEST_F(CommandDrainTest, A_host_that_cannot_be_given_back_is_an_error_of_its_own) {
  auto drain = make("true", "test $DSI_HOST = good");
  drain->take({"bad", "good"});
  look_until(*drain, "bad", is_idle);
  look_until(*drain, "good", is_idle);
  auto answers = drain->give_back({"bad", "good"});
  ASSERT_FALSE(answers[0]);
  EXPECT_THAT(answers[0].error().what, HasSubstr("--undrain ended with exit code 1"));
  EXPECT_TRUE(answers[1]);
}

}  // namespace
}  // namespace dsi

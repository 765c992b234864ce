// A hold: the node keeps the release that it has. And going back to a release by its name.

#include "tests/agent/fixture.h"

namespace dsi::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class HoldTest : public AgentTest {
 protected:
  std::string change(bool hold, const std::string& reason = "") {
    Head head(DSI_AGENT, prefix_);
    head.send("hold", protocol::HoldRequest{"run-h", "alice@head", hold, reason, 30});
    auto result = head.result();
    if (!result) return "no result";
    last_ = *result;
    return result->result;
  }
  std::string roll_back(const std::string& to) {
    Head head(DSI_AGENT, prefix_);
    protocol::RollbackRequest request{"run-r", "tester@head", {}, 60, 30};
    request.to = to;
    head.send("rollback", request);
    auto result = head.result();
    if (!result) return "no result";
    last_ = *result;
    return result->result;
  }

  TestRelease one_ = make_release("1");
  TestRelease two_ = make_release("2");
};

TEST_F(HoldTest, A_held_node_keeps_its_release_and_says_who_wants_that_and_why) {
  ASSERT_EQ(install(one_), "installed");
  EXPECT_EQ(change(true, "the paper's \"numbers\""), "held");
  auto before = snapshot(prefix_);
  EXPECT_EQ(Head(DSI_AGENT, prefix_).hello().facts.held.substr(0, 6), "since ");
  EXPECT_EQ(install(two_), "held");
  EXPECT_EQ(files_sent_, 0u);
  EXPECT_THAT(last_.error.what, AllOf(HasSubstr("by alice@head: the paper's \"numbers\""),
                                      HasSubstr("held since 2")));
  EXPECT_EQ(last_.to, one_.id());
  // The same release may be looked at and mended.
  EXPECT_EQ(install(one_), "up-to-date");
  {
    Head head(DSI_AGENT, prefix_);
    auto result = head.uninstall();
    ASSERT_TRUE(result);
    EXPECT_EQ(result->result, "held");
  }
  before.erase("probes.json");
  auto after = snapshot(prefix_);
  after.erase("probes.json");
  EXPECT_EQ(after, before);

  protocol::InstallRequest request;
  request.care.ignore_holds = true;
  EXPECT_EQ(install(two_, request), "installed");
  EXPECT_NE(Head(DSI_AGENT, prefix_).hello().facts.held, "") << "a hold outlives being ignored";
  EXPECT_EQ(roll_back(""), "held");
  EXPECT_EQ(change(false), "unheld");
  EXPECT_EQ(Head(DSI_AGENT, prefix_).hello().facts.held, "");
  EXPECT_EQ(roll_back(""), "rolled-back");
}

TEST_F(HoldTest, A_node_with_nothing_on_it_can_be_held_too) {
  EXPECT_EQ(change(false), "unheld");
  EXPECT_FALSE(fs::exists(prefix_));
  EXPECT_EQ(change(true), "held");
  EXPECT_EQ(install(one_), "held");
  EXPECT_EQ(change(false), "unheld");
  EXPECT_FALSE(fs::exists(prefix_)) << "nothing is left of it";
}

TEST_F(HoldTest, A_hold_that_cannot_be_read_holds) {
  ASSERT_EQ(install(one_), "installed");
  write(prefix_ / "hold.json", "\x01 no json");
  EXPECT_EQ(install(two_), "held");
  EXPECT_THAT(last_.error.what, HasSubstr("its hold.json cannot be read"));
}

TEST_F(HoldTest, Rollback_goes_to_the_release_that_is_named_and_once_only) {
  ASSERT_EQ(install(one_), "installed");
  ASSERT_EQ(install(two_), "installed");
  EXPECT_THAT(last_.releases, ElementsAre(two_.id(), one_.id()));
  EXPECT_EQ(roll_back(one_.id()), "rolled-back");
  EXPECT_EQ(current(prefix_), one_.id());
  EXPECT_EQ(roll_back(one_.id()), "up-to-date") << "it does not go back and forth";
  EXPECT_EQ(status_of("good"), "ok");
  EXPECT_EQ(current(prefix_), one_.id());

  auto before = snapshot(prefix_);
  EXPECT_EQ(roll_back("0123456789abcdef"), "failed");
  EXPECT_THAT(last_.error.what, HasSubstr("there is no release 0123456789abcdef here; there are " +
                                          one_.id() + ", " + two_.id()));
  EXPECT_EQ(roll_back("../store"), "failed");
  EXPECT_EQ(snapshot(prefix_), before);
}

}  // namespace
}  // namespace dsi::testing

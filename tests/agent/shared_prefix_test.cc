// A prefix that several nodes see: what another node may use is not removed. The other node is an
// agent of its own under another host name.

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "tests/agent/fixture.h"

namespace dsi::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class SharedPrefix : public AgentTest {
 protected:
  void SetUp() override {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(::unshare(CLONE_NEWUTS) == 0 ? 0 : 1);
    int status = 0;
    ::waitpid(child, &status, 0);
    if (status != 0) GTEST_SKIP() << "this user may not give a process a host name of its own";
  }

  static HeadSettings node(const std::string& name) {
    return {{}, [name] {
              if (::unshare(CLONE_NEWUTS) != 0 || ::sethostname(name.data(), name.size()) != 0) {
                ::_exit(9);
              }
            }};
  }
  // A run that comes to the node.
  std::string visit(const std::string& name, const TestRelease& release) {
    auto result = Head(DSI_AGENT, prefix_, node(name)).install(release);
    return result ? result->result : "no result";
  }
  json nodes() const { return json::parse(slurp(prefix_ / "nodes.json"), nullptr, false); }
  std::vector<std::string> releases() const {
    std::vector<std::string> all;
    for (const auto& entry : fs::directory_iterator(prefix_ / "releases")) {
      all.push_back(entry.path().filename());
    }
    return all;
  }

  TestRelease one_ = make_release("1");
  TestRelease two_ = make_release("2");
  TestRelease three_ = make_release("3");
};

TEST_F(SharedPrefix, What_was_current_stays_until_each_node_has_been_asked_since) {
  ASSERT_EQ(visit("a", one_), "installed");
  ASSERT_EQ(visit("b", one_), "up-to-date");
  ASSERT_EQ(visit("a", two_), "installed");
  ASSERT_EQ(visit("a", three_), "installed");
  // b may have begun to use any of them, and nobody has looked.
  EXPECT_THAT(releases(), UnorderedElementsAre(one_.id(), two_.id(), three_.id()));
  EXPECT_THAT(nodes()["nodes"]["b"]["may_use"],
              UnorderedElementsAre(one_.id(), two_.id(), three_.id()));
  // It does not, and the node that was asked last takes it away.
  EXPECT_EQ(visit("b", three_), "up-to-date");
  EXPECT_THAT(releases(), UnorderedElementsAre(two_.id(), three_.id()));
  expect_consistent(prefix_);
}

TEST_F(SharedPrefix, A_node_that_no_run_has_come_to_for_long_is_forgotten) {
  ASSERT_EQ(visit("a", one_), "installed");
  ASSERT_EQ(visit("b", one_), "up-to-date");
  json all = nodes();
  all["nodes"]["b"]["looked"] = "2001-09-09T01:46:40Z";
  write(prefix_ / "nodes.json", all.dump());
  ASSERT_EQ(visit("a", two_), "installed");
  ASSERT_EQ(visit("a", three_), "installed");
  EXPECT_THAT(releases(), UnorderedElementsAre(two_.id(), three_.id()));
  EXPECT_FALSE(nodes()["nodes"].contains("b"));
}

TEST_F(SharedPrefix, Nothing_is_removed_where_it_is_not_known_who_uses_it) {
  ASSERT_EQ(visit("a", one_), "installed");
  ASSERT_EQ(visit("a", two_), "installed");
  for (const char* damaged : {"\x01 no json", "{\"nodes\": [1]}", ""}) {
    write(prefix_ / "nodes.json", damaged);
    ASSERT_EQ(visit("a", three_), "installed");
    EXPECT_TRUE(fs::exists(prefix_ / "releases" / one_.id())) << damaged;
    EXPECT_TRUE(nodes().is_object()) << "it is known from now on";
    ASSERT_EQ(visit("a", two_), "installed");
    EXPECT_FALSE(fs::exists(prefix_ / "releases" / one_.id())) << damaged;
    ASSERT_EQ(visit("a", one_), "installed");
    ASSERT_EQ(visit("a", two_), "installed");
  }
}

TEST_F(SharedPrefix, Uninstall_takes_the_list_of_nodes_away_too) {
  ASSERT_EQ(visit("a", one_), "installed");
  ASSERT_EQ(visit("b", one_), "up-to-date");
  auto result = Head(DSI_AGENT, prefix_, node("b")).uninstall();
  ASSERT_TRUE(result);
  EXPECT_EQ(result->result, "uninstalled");
  EXPECT_FALSE(fs::exists(prefix_));
  EXPECT_THAT(leftovers(prefix_), IsEmpty());
}

}  // namespace
}  // namespace dsi::testing

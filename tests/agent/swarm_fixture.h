#pragma once

// Real agents that exchange chunks over loopback, with the test as their head.

#include "tests/agent/fixture.h"
#include "tests/agent/swarm.h"

namespace dsi::testing {

namespace fs = std::filesystem;

class SwarmTest : public AgentTest {
 protected:
  void SetUp() override {
    if (!enter_own_network()) GTEST_SKIP() << "this user may not make a network namespace";
  }

  static TestRelease large_release(std::size_t size = 3u << 20) {
    TestRelease release = make_release("1");
    release.add_file("lib/large.bin", random_text(size, 7));
    release.add_file("bin/twice", "the same content\n", 0755);
    release.add_file("lib/twice", "the same content\n", 0644);
    return release;
  }
  fs::path prefix_of(int number) const { return folder_.path() / fmt::format("node {}", number); }

  // Agents that listen and have joined.
  void start(TestSwarm& swarm, const TestRelease& release, int count,
             const HeadSettings& settings = {}) {
    for (int i = 0; i < count; ++i) {
      SwarmNode& node = swarm.add(DSI_AGENT, prefix_of(i), settings);
      ASSERT_TRUE(node.head->connected());
      swarm.listen(node);
      ASSERT_NE(node.listening.port, 0) << node.listening.error;
      swarm.join(node, release);
      ASSERT_TRUE(node.joined) << (node.result ? node.result->error.what : "");
    }
  }
  static SwarmNode& at(TestSwarm& swarm, int number) {
    return *std::next(swarm.nodes.begin(), number);
  }

  static void expect_installed(const SwarmNode& node, const TestRelease& release) {
    ASSERT_TRUE(node.result) << "node " << node.number;
    EXPECT_EQ(node.result->result, "installed") << node.result->error.what;
    EXPECT_EQ(current(node.prefix), release.id());
    expect_consistent(node.prefix);
    EXPECT_THAT(leftovers(node.prefix), ::testing::IsEmpty());
    EXPECT_FALSE(fs::exists(node.prefix / "incoming"));
  }
};

}  // namespace dsi::testing

// Chunks from node to node: how it goes when all goes well, and who may listen where.

#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <csignal>

#include "tests/agent/swarm_fixture.h"

namespace dsi::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST_F(SwarmTest, Every_node_gets_everything_and_the_head_sends_each_chunk_once) {
  TestRelease release = large_release();
  TestSwarm swarm(stream_of(release, 16384, 4));
  ASSERT_NO_FATAL_FAILURE(start(swarm, release, 5));
  // Node i is at the root of stripe i, the others follow it there; the last node is a leaf only.
  // The index comes from node 0, along a chain.
  swarm.send_index(at(swarm, 0));
  for (std::uint32_t stripe = 0; stripe < 4; ++stripe) {
    for (SwarmNode& node : swarm.nodes) {
      bool root = node.number == stripe;
      swarm.follow(node, stripe, root ? nullptr : &at(swarm, static_cast<int>(stripe)));
    }
  }
  for (std::uint32_t i = 0; i < swarm.stream.index.chunks(); ++i) {
    swarm.send_chunk(at(swarm, static_cast<int>(i % 4)), i);
  }
  ASSERT_TRUE(swarm.wait_for_results());
  // All agree that all is there.
  EXPECT_TRUE(swarm.wait([&] {
    return std::all_of(swarm.nodes.begin(), swarm.nodes.end(), [&](const SwarmNode& node) {
      return node.chunks() == swarm.stream.index.chunks();
    });
  }));
  std::uint64_t received = 0;
  for (SwarmNode& node : swarm.nodes) {
    expect_installed(node, release);
    EXPECT_TRUE(node.complete);
    EXPECT_THAT(node.faults, IsEmpty());
    received += node.have.received;
  }
  EXPECT_EQ(received, 4 * swarm.stream.bytes.size()) << "five copies, one of them from the head";
  EXPECT_EQ(at(swarm, 4).have.received, swarm.stream.bytes.size());

  for (SwarmNode& node : swarm.nodes) {
    node.head->send("dismiss", nullptr);
    // What comes after it comes after the ports were closed.
    node.head->send("report", protocol::ReportRequest{});
    node.result.reset();
  }
  ASSERT_TRUE(swarm.wait_for_results());
  for (SwarmNode& node : swarm.nodes) {
    EXPECT_FALSE(is_open(node.listening.port));
    EXPECT_EQ(node.result->result, "reported") << "an agent can be asked on after a swarm";
  }
}

TEST_F(SwarmTest, Nodes_that_follow_each_other_before_either_has_the_index_get_it_from_a_third) {
  TestRelease release = large_release(1u << 20);
  TestSwarm swarm(stream_of(release, 16384, 2));
  ASSERT_NO_FATAL_FAILURE(start(swarm, release, 3));
  SwarmNode& one = at(swarm, 0);
  SwarmNode& two = at(swarm, 1);
  SwarmNode& third = at(swarm, 2);
  swarm.follow(one, 0, &two);
  swarm.follow(two, 1, &one);
  // Longer than it takes them to meet; if not, the test proves less.
  swarm.wait([end = std::chrono::steady_clock::now() + std::chrono::milliseconds(300)] {
    return std::chrono::steady_clock::now() > end;
  });
  swarm.follow(one, 1, &third);
  swarm.follow(two, 0, &third);
  swarm.send_index(third);
  swarm.send_chunks(third);
  ASSERT_TRUE(swarm.wait_for_results());
  for (SwarmNode& node : swarm.nodes) expect_installed(node, release);
}

TEST_F(SwarmTest, The_end_of_the_heads_stream_closes_the_port_and_ends_the_process) {
  TestRelease release = large_release();
  TestSwarm swarm(stream_of(release, 16384, 1));
  ASSERT_NO_FATAL_FAILURE(start(swarm, release, 2));
  swarm.send_index(at(swarm, 0));
  swarm.follow_all(at(swarm, 1), &at(swarm, 0));
  swarm.send_chunks(at(swarm, 0), 0, 40);
  ASSERT_TRUE(swarm.wait([&] { return at(swarm, 1).chunks() == 40; }));
  for (SwarmNode& node : swarm.nodes) {
    EXPECT_TRUE(is_open(node.listening.port));
    node.head->leave();
    EXPECT_TRUE(WIFEXITED(node.head->wait()));
    EXPECT_FALSE(is_open(node.listening.port));
    EXPECT_EQ(current(node.prefix), "");
  }
}

TEST_F(SwarmTest, Listens_before_an_install_is_asked_for_and_in_the_middle_of_one) {
  TestRelease release = large_release();
  TestSwarm swarm(stream_of(release, 16384, 1));
  SwarmNode& node = swarm.add(DSI_AGENT, prefix_of(0));
  protocol::InstallRequest request;
  request.run = "run-1";
  request.manifest = release.text();
  node.head->send("install", request);
  ASSERT_TRUE(swarm.wait([&] { return node.need.has_value(); }));
  swarm.listen(node);
  ASSERT_NE(node.listening.port, 0);
  EXPECT_THAT(node.listening.addresses, Not(IsEmpty()));
  // The answer to "need" may still be that the head sends everything itself.
  for (const std::string& digest : node.need->digests) {
    node.head->send_file(digest, release.contents.at(digest));
  }
  node.head->send("commit", nullptr);
  ASSERT_TRUE(swarm.wait_for_results());
  expect_installed(node, release);
}

TEST_F(SwarmTest, The_address_by_which_the_head_came_is_named_first) {
  TestSwarm swarm({});
  HeadSettings settings;
  settings.in_child = [] { ::setenv("SSH_CONNECTION", "192.0.2.1 50000 192.0.2.7 22", 1); };
  SwarmNode& node = swarm.add(DSI_AGENT, prefix_of(0), settings);
  swarm.listen(node);
  ASSERT_THAT(node.listening.addresses, Not(IsEmpty()));
  EXPECT_EQ(node.listening.addresses[0], "192.0.2.7");
  EXPECT_FALSE(fs::exists(prefix_of(0))) << "listening changes nothing on the node";
}

TEST_F(SwarmTest, A_range_of_one_port_is_kept_to_and_a_taken_one_is_an_error) {
  TestSwarm swarm({});
  SwarmNode& one = swarm.add(DSI_AGENT, prefix_of(0));
  SwarmNode& two = swarm.add(DSI_AGENT, prefix_of(1));
  swarm.listen(one, kRunKey, "34567-34567");
  EXPECT_EQ(one.listening.port, 34567) << one.listening.error;
  swarm.listen(two, kRunKey, "34567-34567");
  EXPECT_EQ(two.listening.port, 0);
  EXPECT_THAT(two.listening.error,
              AllOf(HasSubstr("34567-34567"), HasSubstr("Address already in use"),
                    HasSubstr("--peer-ports")));
  swarm.listen(two, kRunKey, "34567-34568");
  EXPECT_EQ(two.listening.port, 34568);
  for (const char* bad : {"x", "5-4", "0-7", "1-70000", "1", "-", "1-2x"}) {
    swarm.listen(two, kRunKey, bad);
    EXPECT_THAT(two.listening.error, HasSubstr("no range of ports")) << bad;
  }
  // A second "listen" took the place of the first.
  EXPECT_FALSE(is_open(34568));
  swarm.listen(two, "abc", "34568-34568");
  EXPECT_EQ(two.listening.error, "the key of the run is malformed");
}

}  // namespace
}  // namespace dsi::testing

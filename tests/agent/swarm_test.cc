// Real agents that exchange chunks over loopback, with the test as their head.

#include <poll.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>

#include "tests/agent/fixture.h"
#include "tests/agent/swarm.h"

namespace dsi::testing {
namespace {

namespace fs = std::filesystem;
using agent::PeerLink;
using agent::RecordType;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using ::testing::SizeIs;

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
    EXPECT_THAT(leftovers(node.prefix), IsEmpty());
    EXPECT_FALSE(fs::exists(node.prefix / "incoming"));
  }
};

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

TEST_F(SwarmTest, Who_has_another_key_is_refused_and_hears_nothing) {
  TestRelease release = large_release();
  TestSwarm swarm(stream_of(release, 16384, 2));
  ASSERT_NO_FATAL_FAILURE(start(swarm, release, 1));
  SwarmNode& parent = at(swarm, 0);
  SwarmNode& child = swarm.add(DSI_AGENT, prefix_of(1));
  std::string other = kRunKey;
  other[0] = 'f';
  swarm.listen(child, other);
  swarm.join(child, release);
  swarm.send_index(parent);
  swarm.send_chunks(parent);
  swarm.follow_all(child, &parent);
  ASSERT_TRUE(swarm.wait([&] { return child.faults.size() == 2; }));
  for (const auto& fault : child.faults) {
    EXPECT_EQ(fault.kind, "refused");
    EXPECT_EQ(fault.peer, 0);
    EXPECT_THAT(fault.detail, HasSubstr("another key"));
  }
  EXPECT_EQ(child.have.received, 0u);
  ASSERT_TRUE(swarm.wait([&] { return parent.result.has_value(); }));
  expect_installed(parent, release);
}

TEST_F(SwarmTest, Whoever_cannot_prove_the_key_is_not_answered) {
  TestRelease release = large_release();
  TestSwarm swarm(stream_of(release, 16384, 1));
  ASSERT_NO_FATAL_FAILURE(start(swarm, release, 2));
  std::uint16_t port = at(swarm, 0).listening.port;
  std::string hello = "DSP1" + std::string(1, '\3') + std::string(64, 'x');
  for (const std::string& text : {std::string("GET / HTTP/1.1\r\n\r\n"), hello, hello.substr(0, 20),
                                  std::string("DSP1"), std::string("DS"), std::string()}) {
    UniqueFd fd = connect_to(port);
    ASSERT_TRUE(fd);
    ASSERT_EQ(::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
    char byte = 0;
    // Closed, sooner or later, and not a byte before.
    EXPECT_LE(::recv(fd.get(), &byte, 1, 0), 0) << text.substr(0, 4);
  }
  // Many of them at once, before and while somebody else is served.
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 200; ++i) silent.push_back(connect_to(port));
  swarm.send_index(at(swarm, 0));
  swarm.send_chunks(at(swarm, 0));
  swarm.follow_all(at(swarm, 1), &at(swarm, 0));
  for (int i = 0; i < 200; ++i) silent.push_back(connect_to(port));
  ASSERT_TRUE(swarm.wait_for_results());
  expect_installed(at(swarm, 1), release);
}

// A parent that is bad in one way. The child names it, and is healed by following somebody else.
class BadParent : public SwarmTest {
 protected:
  void expect_healed(const std::string& kind, const std::string& detail, BadPeer::Serve serve,
                     const std::string& key = kRunKey) {
    TestRelease release = large_release();
    TestSwarm swarm(stream_of(release, 16384, 2));
    stream_ = &swarm.stream;
    ASSERT_NO_FATAL_FAILURE(start(swarm, release, 2));
    SwarmNode& good = at(swarm, 0);
    SwarmNode& child = at(swarm, 1);
    BadPeer bad(77, swarm.stream, key, std::move(serve));
    swarm.send_index(good);
    swarm.send_index(child);
    swarm.send_chunks(good);
    child.head->send("follow", bad.as_parent(0));
    child.head->send("follow", bad.as_parent(1));
    ASSERT_TRUE(swarm.wait([&] { return child.faults.size() >= 2; })) << "no fault";
    EXPECT_THAT(child.faults, SizeIs(2));
    for (const auto& fault : child.faults) {
      EXPECT_EQ(fault.kind, kind);
      EXPECT_EQ(fault.peer, 77);
      EXPECT_THAT(fault.detail, HasSubstr(detail));
    }
    EXPECT_FALSE(child.result);
    swarm.follow_all(child, &good);
    ASSERT_TRUE(swarm.wait_for_results());
    expect_installed(child, release);
    expect_installed(good, release);
  }
  const TestStream* stream_ = nullptr;
};

TEST_F(BadParent, A_flipped_chunk) {
  expect_healed("corrupt", "chunk 0 is not what it should be", [&](PeerLink& link) {
    if (!BadPeer::wait_for(link, RecordType::kFollow)) return;
    std::string bytes(stream_->chunk(0));
    bytes[5] = static_cast<char>(bytes[5] ^ 1);
    BadPeer::put_chunk(link, 0, bytes);
    BadPeer::send(link);
    BadPeer::wait_for(link, RecordType::kIndex);
  });
}

TEST_F(BadParent, A_truncated_chunk) {
  expect_healed("corrupt", "chunk 2 is not what it should be", [&](PeerLink& link) {
    if (!BadPeer::wait_for(link, RecordType::kFollow)) return;
    BadPeer::put_chunk(link, 0, stream_->chunk(0));
    BadPeer::put_chunk(link, 2, stream_->chunk(2).substr(1));
    BadPeer::send(link);
    BadPeer::wait_for(link, RecordType::kIndex);
  });
}

TEST_F(BadParent, A_chunk_under_another_number) {
  expect_healed("corrupt", "chunk 2 is not what it should be", [&](PeerLink& link) {
    if (!BadPeer::wait_for(link, RecordType::kFollow)) return;
    BadPeer::put_chunk(link, 2, stream_->chunk(0));
    BadPeer::send(link);
    BadPeer::wait_for(link, RecordType::kIndex);
  });
}

TEST_F(BadParent, A_chunk_that_the_swarm_does_not_have) {
  expect_healed("corrupt", "is not what it should be", [&](PeerLink& link) {
    if (!BadPeer::wait_for(link, RecordType::kFollow)) return;
    BadPeer::put_chunk(link, 0xffffffff, stream_->chunk(0));
    BadPeer::send(link);
    BadPeer::wait_for(link, RecordType::kIndex);
  });
}

TEST_F(BadParent, A_record_that_was_altered_on_the_way) {
  expect_healed("corrupt", "not authentic", [&](PeerLink& link) {
    if (!BadPeer::wait_for(link, RecordType::kFollow)) return;
    char* to = link.begin(RecordType::kChunk, agent::number_bytes(0), stream_->chunk(0).size());
    std::string_view bytes = stream_->chunk(0);
    std::copy(bytes.begin(), bytes.end(), to);
    link.seal();
    to[100] = static_cast<char>(to[100] ^ 1);
    BadPeer::send(link);
    BadPeer::wait_for(link, RecordType::kIndex);
  });
}

TEST_F(BadParent, A_length_that_cannot_be) {
  expect_healed("corrupt", "not authentic", [&](PeerLink& link) {
    if (!BadPeer::wait_for(link, RecordType::kFollow)) return;
    std::string bytes(8, '\xff');
    (void)!::send(link.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    BadPeer::wait_for(link, RecordType::kIndex);
  });
}

TEST_F(BadParent, A_record_that_only_a_child_sends) {
  expect_healed("corrupt", "only a child", [&](PeerLink& link) {
    if (!BadPeer::wait_for(link, RecordType::kFollow)) return;
    link.put(RecordType::kFollow, std::string(9, '\0'));
    BadPeer::send(link);
    BadPeer::wait_for(link, RecordType::kIndex);
  });
}

TEST_F(BadParent, An_index_that_nobody_asked_for) {
  expect_healed("corrupt", "only a child", [&](PeerLink& link) {
    if (!BadPeer::wait_for(link, RecordType::kFollow)) return;
    link.put(RecordType::kIndex, "x");
    link.put(RecordType::kAskIndex, {});
    BadPeer::send(link);
    BadPeer::wait_for(link, RecordType::kIndex);
  });
}

TEST_F(BadParent, It_closes_in_the_middle_of_a_chunk) {
  expect_healed("closed", "closed the connection", [&](PeerLink& link) {
    if (!BadPeer::wait_for(link, RecordType::kFollow)) return;
    BadPeer::put_chunk(link, 0, stream_->chunk(0));
    BadPeer::send(link);
    std::string part = agent::number_bytes(16000) + std::string(1000, 'x');
    (void)!::send(link.fd(), part.data(), part.size(), MSG_NOSIGNAL);
    ::shutdown(link.fd(), SHUT_RDWR);
  });
}

TEST_F(BadParent, It_stands_still_in_the_middle_of_a_chunk) {
  expect_healed("silent", "nothing came for 3 s", [&](PeerLink& link) {
    if (!BadPeer::wait_for(link, RecordType::kFollow)) return;
    std::string part = agent::number_bytes(16000) + std::string(1000, 'x');
    (void)!::send(link.fd(), part.data(), part.size(), MSG_NOSIGNAL);
    BadPeer::wait_for(link, RecordType::kIndex);  // Until it is hung up on.
  });
}

TEST_F(BadParent, It_has_another_key) {
  std::string other = kRunKey;
  other[63] = '0';
  expect_healed(
      "refused", "another key", [](PeerLink&) {}, other);
}

// A child that has the key and means harm is hung up on, and the node serves the others.
TEST_F(SwarmTest, Records_of_a_child_that_cannot_be_end_its_connection) {
  TestRelease release = large_release(1u << 20);
  TestSwarm swarm(stream_of(release, 16384, 2));
  ASSERT_NO_FATAL_FAILURE(start(swarm, release, 2));
  SwarmNode& parent = at(swarm, 0);
  swarm.send_index(parent);
  swarm.send_chunks(parent, 0, 10);
  ASSERT_TRUE(swarm.wait([&] { return parent.chunks() == 10; }));
  auto digest = distribute::hash_of(swarm.stream.encoded);
  std::string hello = agent::number_bytes(100) +
                      std::string(reinterpret_cast<const char*>(digest.data()), digest.size());
  std::string other_swarm = hello;
  other_swarm.back() = static_cast<char>(other_swarm.back() ^ 1);
  std::size_t bitmap = (swarm.stream.index.chunks_in(0) + 7) / 8;
  using Sent = std::pair<RecordType, std::string>;
  for (const Sent& last : std::vector<Sent>{
           {RecordType::kFollow, {}},
           {RecordType::kFollow, "abc"},
           {RecordType::kFollow, agent::number_bytes(0) + std::string(bitmap + 1, '\0')},
           {RecordType::kFollow, agent::number_bytes(0) + std::string(bitmap - 1, '\0')},
           {RecordType::kFollow, agent::number_bytes(2) + std::string(bitmap, '\0')},
           {RecordType::kFollow, agent::number_bytes(~0u) + std::string(bitmap, '\0')},
           {RecordType::kUnfollow, "ab"},
           {RecordType::kChunk, agent::number_bytes(20) + "x"},
           {RecordType::kIndex, "x"},
           {RecordType::kHasIndex, {}},
           {RecordType::kHello, hello}}) {
    UniqueFd fd = connect_to(parent.listening.port);
    PeerLink link(std::move(fd), PeerLink::Role::kClient, *agent::run_key(kRunKey));
    BadPeer::send(link);
    EXPECT_FALSE(BadPeer::wait_until_open(link).failed());
    link.put(RecordType::kHello, hello);
    ASSERT_TRUE(BadPeer::wait_for(link, RecordType::kHello));
    link.put(last.first, last.second);
    EXPECT_FALSE(BadPeer::wait_for(link, RecordType::kHello));
    EXPECT_EQ(link.state(), PeerLink::State::kClosed);
  }
  for (const std::string& first : {other_swarm, hello + "x", std::string("x"), std::string()}) {
    UniqueFd fd = connect_to(parent.listening.port);
    PeerLink link(std::move(fd), PeerLink::Role::kClient, *agent::run_key(kRunKey));
    BadPeer::send(link);
    EXPECT_FALSE(BadPeer::wait_until_open(link).failed());
    link.put(RecordType::kHello, first);
    EXPECT_FALSE(BadPeer::wait_for(link, RecordType::kHello));
  }
  swarm.send_chunks(parent, 10);
  swarm.follow_all(at(swarm, 1), &parent);
  ASSERT_TRUE(swarm.wait_for_results());
  for (SwarmNode& node : swarm.nodes) expect_installed(node, release);
}

TEST_F(SwarmTest, An_index_that_is_not_the_announced_one_is_not_believed) {
  TestRelease release = large_release();
  TestSwarm swarm(stream_of(release, 16384, 1));
  ASSERT_NO_FATAL_FAILURE(start(swarm, release, 2));
  SwarmNode& good = at(swarm, 0);
  SwarmNode& child = at(swarm, 1);
  std::string forged = swarm.stream.encoded;
  forged[forged.size() - 1] = static_cast<char>(forged[forged.size() - 1] ^ 1);
  BadPeer bad(77, swarm.stream, kRunKey, [&](PeerLink& link) {
    link.put(RecordType::kHasIndex, {});
    if (!BadPeer::wait_for(link, RecordType::kAskIndex)) return;
    link.put(RecordType::kIndex, forged);
    BadPeer::send(link);
    BadPeer::wait_for(link, RecordType::kIndex);
  });
  child.head->send("follow", bad.as_parent(0));
  ASSERT_TRUE(swarm.wait([&] { return !child.faults.empty(); }));
  EXPECT_EQ(child.faults[0].kind, "corrupt");
  swarm.send_index(good);
  swarm.send_chunks(good);
  swarm.follow_all(child, &good);
  ASSERT_TRUE(swarm.wait_for_results());
  expect_installed(child, release);
}

TEST_F(SwarmTest, A_parent_that_is_not_there_is_unreachable_and_one_elsewhere_is_looked_for) {
  TestRelease release = large_release();
  TestSwarm swarm(stream_of(release, 16384, 1));
  ASSERT_NO_FATAL_FAILURE(start(swarm, release, 3));
  SwarmNode& child = at(swarm, 1);
  protocol::Follow follow{0, 9, 1, {"127.0.0.1", "nonsense", "::1"}};
  child.head->send("follow", follow);
  ASSERT_TRUE(swarm.wait([&] { return !child.faults.empty(); }));
  EXPECT_EQ(child.faults[0].kind, "unreachable");
  // Node 2 answers where node 0 should: that is not node 0, and its chunks are not asked for.
  follow = {0, 0, at(swarm, 2).listening.port, {"127.0.0.1"}};
  child.head->send("follow", follow);
  ASSERT_TRUE(swarm.wait([&] { return child.faults.size() == 2; }));
  EXPECT_EQ(child.faults[1].kind, "unreachable");
  EXPECT_THAT(child.faults[1].detail, HasSubstr("another node"));
  swarm.send_index(at(swarm, 0));
  swarm.send_chunks(at(swarm, 0));
  follow = {0, 0, at(swarm, 0).listening.port, {"127.1.2.3", "::1"}};
  child.head->send("follow", follow);
  ASSERT_TRUE(swarm.wait([&] { return child.result.has_value(); }));
  expect_installed(child, release);
}

TEST_F(SwarmTest, A_parent_that_is_killed_is_closed_and_another_takes_over) {
  TestRelease release = large_release();
  TestSwarm swarm(stream_of(release, 16384, 2));
  ASSERT_NO_FATAL_FAILURE(start(swarm, release, 3));
  SwarmNode& first = at(swarm, 0);
  SwarmNode& second = at(swarm, 1);
  SwarmNode& child = at(swarm, 2);
  swarm.send_index(first);
  swarm.follow_all(child, &first);
  swarm.send_chunks(first, 0, 50);
  ASSERT_TRUE(swarm.wait([&] { return child.chunks() == 50; }));
  first.head->kill();
  ASSERT_TRUE(swarm.wait([&] { return child.faults.size() == 2; }));
  EXPECT_EQ(child.faults[0].kind, "closed");
  swarm.send_index(second);
  swarm.send_chunks(second);
  swarm.follow_all(child, &second);
  ASSERT_TRUE(swarm.wait([&] { return second.result && child.result; }));
  expect_installed(child, release);
  EXPECT_EQ(child.have.received, swarm.stream.bytes.size()) << "no chunk came twice";
}

TEST_F(SwarmTest, A_parent_that_is_stopped_is_silent) {
  TestRelease release = large_release();
  TestSwarm swarm(stream_of(release, 16384, 1));
  ASSERT_NO_FATAL_FAILURE(start(swarm, release, 2));
  SwarmNode& child = at(swarm, 1);
  swarm.send_index(at(swarm, 0));
  swarm.follow_all(child, &at(swarm, 0));
  swarm.send_chunks(at(swarm, 0), 0, 10);
  ASSERT_TRUE(swarm.wait([&] { return child.chunks() == 10; }));
  ::kill(at(swarm, 0).head->pid(), SIGSTOP);
  EXPECT_TRUE(swarm.wait([&] { return child.has_fault("silent"); }));
  ::kill(at(swarm, 0).head->pid(), SIGCONT);
  swarm.follow_all(child, nullptr);
  swarm.send_chunks(child, 10);
  ASSERT_TRUE(swarm.wait([&] { return child.result.has_value(); }));
  expect_installed(child, release);
}

TEST_F(SwarmTest, A_child_that_stands_still_holds_up_nobody) {
  TestRelease release = large_release();
  TestSwarm swarm(stream_of(release, 16384, 1));
  ASSERT_NO_FATAL_FAILURE(start(swarm, release, 3));
  swarm.send_index(at(swarm, 0));
  swarm.follow_all(at(swarm, 1), &at(swarm, 0));
  swarm.follow_all(at(swarm, 2), &at(swarm, 0));
  swarm.send_chunks(at(swarm, 0), 0, 10);
  ASSERT_TRUE(
      swarm.wait([&] { return at(swarm, 1).chunks() == 10 && at(swarm, 2).chunks() == 10; }));
  ::kill(at(swarm, 1).head->pid(), SIGSTOP);
  swarm.send_chunks(at(swarm, 0), 10);
  EXPECT_TRUE(swarm.wait([&] { return at(swarm, 2).result.has_value(); }));
  ::kill(at(swarm, 1).head->pid(), SIGCONT);
  ASSERT_TRUE(swarm.wait_for_results());
  for (SwarmNode& node : swarm.nodes) expect_installed(node, release);
}

TEST_F(SwarmTest, Chunks_from_the_head_that_are_wrong_or_come_twice_are_told_and_dropped) {
  TestRelease release = large_release();
  TestSwarm swarm(stream_of(release, 16384, 2));
  ASSERT_NO_FATAL_FAILURE(start(swarm, release, 1));
  SwarmNode& node = at(swarm, 0);
  swarm.send_chunks(node, 0, 5);  // Before the index: they are kept until they can be judged.
  swarm.send_index(node);
  swarm.send_chunks(node, 0, 10);
  node.head->send_raw(protocol::chunk_frame(11, swarm.stream.chunk(10)));
  ASSERT_TRUE(swarm.wait([&] { return !node.faults.empty(); }));
  EXPECT_EQ(node.faults[0].kind, "corrupt");
  EXPECT_EQ(node.faults[0].peer, protocol::kHeadIsParent);
  EXPECT_EQ(node.faults[0].stripe, 1u);
  swarm.send_chunks(node, 10);
  ASSERT_TRUE(swarm.wait_for_results());
  expect_installed(node, release);
}

TEST_F(SwarmTest, A_run_that_was_killed_goes_on_with_the_chunks_that_are_there) {
  TestRelease release = large_release();
  TestStream stream = stream_of(release, 16384, 2);
  std::uint32_t chunks = stream.index.chunks();
  {
    TestSwarm swarm(stream);
    ASSERT_NO_FATAL_FAILURE(start(swarm, release, 1));
    swarm.send_index(at(swarm, 0));
    swarm.send_chunks(at(swarm, 0), 0, chunks / 2);
    swarm.send_chunks(at(swarm, 0), chunks / 2 + 3, chunks / 2 + 5);
    ASSERT_TRUE(swarm.wait([&] { return at(swarm, 0).chunks() == chunks / 2 + 2; }));
    at(swarm, 0).head->kill();
    at(swarm, 0).head->wait();
  }
  // One of them is damaged meanwhile, and there are leftovers of other runs.
  fs::path incoming = prefix_of(0) / "incoming" / stream.request().index_digest.substr(0, 16);
  {
    std::fstream file(incoming / "stream", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(16384 * 3 + 100);
    file.put('!');
  }
  fs::create_directories(prefix_of(0) / "incoming" / "0123456789abcdef");
  write(prefix_of(0) / "incoming" / "0123456789abcdef" / "stream", "x");
  write(prefix_of(0) / "incoming" / "junk", "x");

  TestSwarm swarm(stream);
  ASSERT_NO_FATAL_FAILURE(start(swarm, release, 1));
  EXPECT_FALSE(fs::exists(prefix_of(0) / "incoming" / "0123456789abcdef"));
  EXPECT_FALSE(fs::exists(prefix_of(0) / "incoming" / "junk"));
  std::vector<bool> have(chunks);
  std::string digits = at(swarm, 0).joined->have;
  ASSERT_EQ(digits.size(), 2 * ((chunks + 7) / 8));
  for (std::uint32_t i = 0; i < chunks; ++i) {
    int byte = std::stoi(digits.substr(i / 8 * 2, 2), nullptr, 16);
    have[i] = (byte >> i % 8 & 1) != 0;
    bool expected = (i < chunks / 2 && i != 3) || (i >= chunks / 2 + 3 && i < chunks / 2 + 5);
    EXPECT_EQ(have[i], expected) << i;
    if (!have[i]) swarm.send_chunk(at(swarm, 0), i);
  }
  ASSERT_TRUE(swarm.wait_for_results());
  expect_installed(at(swarm, 0), release);
}

TEST_F(SwarmTest, A_run_whose_head_left_is_gone_on_with_and_another_release_ends_it) {
  TestRelease release = large_release();
  TestStream stream = stream_of(release, 16384, 2);
  for (int i = 0; i < 2; ++i) {
    TestSwarm swarm(stream);
    ASSERT_NO_FATAL_FAILURE(start(swarm, release, 1));
    EXPECT_EQ(at(swarm, 0).joined->have.empty(), i == 0);
    if (i == 0) swarm.send_index(at(swarm, 0));
    swarm.send_chunks(at(swarm, 0), 0, 20);
    ASSERT_TRUE(swarm.wait([&] { return at(swarm, 0).chunks() == 20; }));
    at(swarm, 0).head->leave();
    at(swarm, 0).head->wait();
    EXPECT_TRUE(fs::exists(prefix_of(0) / "incoming"));
    EXPECT_THAT(leftovers(prefix_of(0)), IsEmpty());
  }
  prefix_ = prefix_of(0);
  ASSERT_EQ(install(make_release("9")), "installed") << last_.error.what;
  EXPECT_FALSE(fs::exists(prefix_ / "incoming"));
}

TEST_F(SwarmTest, A_patch_needs_its_base_and_the_node_names_those_it_has) {
  TestRelease one = make_release("1");
  std::string old_text = random_text(1u << 20, 1);
  one.add_file("lib/large.bin", old_text);
  TestRelease two = make_release("1");
  std::string new_text = old_text;
  new_text.replace(500'000, 20, "something else, long");
  two.add_file("lib/large.bin", new_text);
  two.add_file("lib/new.bin", "new\n");
  std::string old_digest = sha256_hex(old_text);
  std::string new_digest = sha256_hex(new_text);

  TestStream patched;
  patched.add(new_digest, new_text.size(), compress_patch(old_text, new_text), old_digest);
  patched.add(sha256_hex("new\n"), 4, compress("new\n"));
  // For other nodes of the swarm, who need more than this one.
  patched.add(sha256_hex("other"), 5, compress("other"));
  patched.cut(16384, 1);
  EXPECT_LT(patched.bytes.size(), 10'000u);

  for (int i = 0; i < 2; ++i) {
    prefix_ = prefix_of(i);
    ASSERT_EQ(install(one), "installed");
  }
  {
    TestSwarm swarm(patched);
    ASSERT_NO_FATAL_FAILURE(start(swarm, two, 1));
    EXPECT_THAT(at(swarm, 0).need->bases, ElementsAre(Pair(new_digest, old_digest)));
    swarm.send_index(at(swarm, 0));
    swarm.send_chunks(at(swarm, 0));
    ASSERT_TRUE(swarm.wait_for_results());
    expect_installed(at(swarm, 0), two);
  }
  // The same from the head alone.
  {
    Head head(DSI_AGENT, prefix_of(1));
    protocol::InstallRequest request;
    request.manifest = two.text();
    head.send("install", request);
    auto need = head.receive();
    ASSERT_TRUE(need && need->type == "need");
    std::string wire = compress_patch(old_text, new_text);
    head.send("file", protocol::FileHeader{new_digest, new_text.size(), wire.size(), old_digest});
    head.send_raw(protocol::data_frame(wire));
    head.send_file(sha256_hex("new\n"), "new\n");
    head.send("commit", nullptr);
    auto result = head.result();
    ASSERT_TRUE(result);
    EXPECT_EQ(result->result, "installed") << result->error.what;
  }
  // Who does not have the base says so and keeps what it has.
  TestStream for_all;
  for (const auto& [digest, content] : two.contents) {
    bool patch = digest == new_digest;
    for_all.add(digest, content.size(),
                patch ? compress_patch(old_text, new_text) : compress(content),
                patch ? old_digest : "");
  }
  for_all.cut(16384, 1);
  TestSwarm swarm(for_all);
  SwarmNode& bare = swarm.add(DSI_AGENT, prefix_of(2));
  swarm.listen(bare);
  swarm.join(bare, two);
  ASSERT_TRUE(bare.need);
  EXPECT_THAT(bare.need->bases, IsEmpty());
  swarm.send_index(bare);
  swarm.send_chunks(bare);
  ASSERT_TRUE(swarm.wait_for_results());
  EXPECT_EQ(bare.result->result, "failed");
  EXPECT_THAT(bare.result->error.what, HasSubstr("a file that is not in the store"));
  EXPECT_EQ(current(bare.prefix), "");
}

TEST_F(SwarmTest, A_stream_that_does_not_give_the_files_is_refused) {
  TestRelease release = large_release();
  TestStream good = stream_of(release, 16384, 1);
  auto failure = [&](const TestStream& stream) {
    TestSwarm swarm(stream);
    SwarmNode& node = swarm.add(DSI_AGENT, prefix_of(0));
    swarm.listen(node);
    swarm.join(node, release);
    swarm.send_index(node);
    swarm.send_chunks(node);
    swarm.wait_for_results();
    EXPECT_THAT(snapshot(prefix_of(0)), IsEmpty()) << "nothing half done";
    return node.result ? node.result->error.what : "no result";
  };
  TestStream stream = good;
  stream.index.objects.pop_back();
  stream.bytes.resize(stream.index.stream_size());
  stream.cut(16384, 1);
  EXPECT_EQ(failure(stream), "the swarm brings 1 files too few");
  stream = good;
  stream.index.objects[0].size += 1;
  stream.cut(16384, 1);
  EXPECT_THAT(failure(stream), HasSubstr("where the manifest has"));
  stream = good;
  std::swap(stream.bytes[40], stream.bytes[stream.bytes.size() - 40]);
  stream.cut(16384, 1);
  EXPECT_THAT(failure(stream), Not(HasSubstr("no result")));
  stream = good;
  stream.encoded = "nonsense";
  EXPECT_THAT(failure(stream), HasSubstr("no index"));
}

TEST_F(SwarmTest, A_head_that_speaks_of_a_swarm_without_listen_gets_an_error) {
  TestRelease release = large_release();
  TestSwarm swarm(stream_of(release, 16384, 1));
  SwarmNode& node = swarm.add(DSI_AGENT, prefix_of(0));
  swarm.join(node, release);
  ASSERT_TRUE(node.result);
  EXPECT_THAT(node.result->error.what, HasSubstr("never said \"listen\""));
}

TEST_F(SwarmTest, Few_descriptors_are_enough_or_are_named) {
  TestRelease release = large_release(1u << 20);
  TestSwarm swarm(stream_of(release, 16384, 2));
  HeadSettings few;
  few.in_child = [] {
    rlimit limit{40, 40};
    ::setrlimit(RLIMIT_NOFILE, &limit);
  };
  SwarmNode& parent = swarm.add(DSI_AGENT, prefix_of(0), few);
  swarm.listen(parent);
  ASSERT_NE(parent.listening.port, 0) << parent.listening.error;
  swarm.join(parent, release);
  swarm.send_index(parent);
  // All that can be taken up is taken up by others: they go when somebody comes who has the key.
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 60; ++i) silent.push_back(connect_to(parent.listening.port));
  SwarmNode& child = swarm.add(DSI_AGENT, prefix_of(1));
  swarm.listen(child);
  swarm.join(child, release);
  swarm.follow_all(child, &parent);
  swarm.send_chunks(parent);
  ASSERT_TRUE(swarm.wait_for_results());
  EXPECT_THAT(child.faults, IsEmpty());
  expect_installed(parent, release);
  expect_installed(child, release);

  // Real children leave no room, and whoever comes then is told so.
  std::vector<PeerLink> children;
  auto digest = distribute::hash_of(swarm.stream.encoded);
  int refused = 0;
  for (int i = 0; i < 40; ++i) {
    UniqueFd fd = connect_to(parent.listening.port);
    ASSERT_TRUE(fd);
    PeerLink link(std::move(fd), PeerLink::Role::kClient, *agent::run_key(kRunKey));
    BadPeer::send(link);
    BadPeer::wait_until_open(link);
    if (link.state() == PeerLink::State::kOpen) {
      link.put(RecordType::kHello,
               agent::number_bytes(100) +
                   std::string(reinterpret_cast<const char*>(digest.data()), digest.size()));
      EXPECT_TRUE(BadPeer::wait_for(link, RecordType::kHello));
      children.push_back(std::move(link));
    } else {
      refused += link.state() == PeerLink::State::kRefused ? 1 : 0;
    }
  }
  EXPECT_GT(children.size(), 2u);
  EXPECT_EQ(children.size() + static_cast<std::size_t>(refused), 40u);
  EXPECT_GT(refused, 2);
}

TEST_F(SwarmTest, With_no_descriptor_left_it_says_so) {
  TestSwarm swarm({});
  HeadSettings none;
  none.in_child = [] {
    rlimit limit{4, 4};
    ::setrlimit(RLIMIT_NOFILE, &limit);
  };
  SwarmNode& node = swarm.add(DSI_AGENT, prefix_of(0), none);
  swarm.listen(node);
  EXPECT_EQ(node.listening.port, 0);
  EXPECT_THAT(node.listening.error, HasSubstr("Too many open files"));
  node.head->send("report", protocol::ReportRequest{});
  EXPECT_TRUE(swarm.wait_for_results()) << "it goes on without";
}

TEST_F(SwarmTest, A_limit_on_the_rate_is_kept_by_who_sends) {
  TestRelease release = make_release("1");
  release.add_file("lib/large.bin", random_text(300'000, 3));
  TestSwarm swarm(stream_of(release, 16384, 1));
  for (int i = 0; i < 2; ++i) {
    SwarmNode& node = swarm.add(DSI_AGENT, prefix_of(i));
    swarm.listen(node, kRunKey, {}, 200'000);
    swarm.join(node, release);
  }
  swarm.send_index(at(swarm, 0));
  swarm.send_chunks(at(swarm, 0));
  auto start = std::chrono::steady_clock::now();
  swarm.follow_all(at(swarm, 1), &at(swarm, 0));
  ASSERT_TRUE(swarm.wait_for_results());
  // Never faster, however slow the machine: the burst and one chunk come on top of the rate.
  double least = (static_cast<double>(swarm.stream.bytes.size()) - 20'000 - 16'384) / 200'000;
  EXPECT_GE(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), least);
}

class SwarmDisk : public SwarmTest {
 protected:
  void mount(const std::string& options) {
    fs::create_directories(disk_);
    if (::mount("tmpfs", disk_.c_str(), "tmpfs", 0, options.c_str()) != 0) {
      GTEST_SKIP() << "this user may not mount a tmpfs";
    }
    mounted_ = true;
  }
  void TearDown() override {
    if (mounted_) ::umount2(disk_.c_str(), MNT_DETACH);
  }
  fs::path disk_ = folder_.path() / "disk";
  bool mounted_ = false;
};

TEST_F(SwarmDisk, A_disk_too_small_for_stream_and_files_is_one_clear_error) {
  ASSERT_NO_FATAL_FAILURE(mount("size=6m"));
  if (IsSkipped()) return;
  TestRelease release = large_release();
  TestSwarm swarm(stream_of(release, 16384, 1));
  SwarmNode& node = swarm.add(DSI_AGENT, disk_ / "ops");
  swarm.listen(node);
  swarm.join(node, release);
  ASSERT_TRUE(node.joined);
  swarm.send_index(node);
  swarm.send_chunks(node);
  ASSERT_TRUE(swarm.wait_for_results());
  EXPECT_EQ(node.result->result, "failed");
  EXPECT_THAT(node.result->error.what, HasSubstr("bytes free; the release needs"));
  EXPECT_FALSE(fs::exists(disk_ / "ops"));
}

TEST_F(SwarmDisk, A_disk_that_fills_while_chunks_come_is_one_clear_error) {
  ASSERT_NO_FATAL_FAILURE(mount("size=9m"));
  if (IsSkipped()) return;
  TestRelease release = large_release();
  TestSwarm swarm(stream_of(release, 16384, 1));
  SwarmNode& node = swarm.add(DSI_AGENT, disk_ / "ops");
  swarm.listen(node);
  swarm.join(node, release);
  ASSERT_TRUE(node.joined);
  swarm.send_index(node);
  // Until files are made of the stream: the look at the space that is free is over then.
  swarm.send_chunks(node, 0, 64);
  ASSERT_TRUE(swarm.wait([&] {
    fs::directory_iterator store(disk_ / "ops/store");
    return std::any_of(fs::begin(store), fs::end(store), [](const auto& file) {
      std::error_code gone;  // It was renamed meanwhile.
      auto size = file.file_size(gone);
      return !gone && size > 0;
    });
  }));
  write(disk_ / "other", std::string(5u << 20, 'x'));
  swarm.send_chunks(node, 64);
  ASSERT_TRUE(swarm.wait_for_results());
  EXPECT_EQ(node.result->result, "failed");
  EXPECT_THAT(node.result->error.what, HasSubstr("No space left on device"));
  EXPECT_THAT(node.result->error.help, HasSubstr("free space"));
  EXPECT_FALSE(fs::exists(disk_ / "ops"));
}

}  // namespace
}  // namespace dsi::testing

// Peers that lie, stall, die or have no business here.

#include <poll.h>
#include <sys/socket.h>

#include <csignal>

#include "tests/agent/swarm_fixture.h"

namespace dsi::testing {
namespace {

using agent::PeerLink;
using agent::RecordType;
using ::testing::HasSubstr;
using ::testing::SizeIs;

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

}  // namespace
}  // namespace dsi::testing

// Loader and source together, and each with a partner that does not play by the rules.

#include <future>

#include "orchestrator/agent/agent_source.h"
#include "orchestrator/agent/protocol.h"
#include "orchestrator/loader/sha256.h"
#include "tests/loader/fixture.h"

namespace dsi::testing {
namespace {

namespace fs = std::filesystem;
using agent::AgentSource;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class PeerTest : public LoaderTest {
 protected:
  PeerTest() {
    fs::create_directories(source_store_);
    std::ofstream(source_store_ / (payload_.digest + ".lzma")) << payload_.wire;
  }

  // What a listener does: accepts, looks at the first four bytes, hands over.
  static void hand_over(const LoopbackPort& port, AgentSource& source) {
    UniqueFd fd = port.accept();
    char magic[4] = {};
    ASSERT_EQ(::recv(fd.get(), magic, sizeof magic, MSG_PEEK | MSG_WAITALL), 4);
    ASSERT_EQ(std::string_view(magic, sizeof magic), agent::kLoaderMagic);
    source.serve(std::move(fd));
  }

  // Says that something failed and is ready for the next request.
  std::string failure_of(Loader& loader) const {
    EXPECT_EQ(loader.read_until("\nDSL0 abc123 "), "\nDSL0 abc123 ");
    return loader.read_until("\n");
  }

  void expect_that_it_takes_another_source(Loader& loader) {
    EXPECT_TRUE(names().empty());
    loader.write("stdin\n" + payload_.wire);
    EXPECT_EQ(loader.read_until("\n"), greeting());
    loader.end();
    expect_whole();
  }

  fs::path source_store_ = folder_.path() / "source" / "store";
  LoopbackPort port_;
};

TEST_F(PeerTest, The_agent_comes_from_a_node_that_has_it) {
  AgentSource source(source_store_, payload_.digest, key_bytes());
  Loader loader(words());
  loader.read_until("ready\n");
  loader.write(peer_request(port_.port));
  hand_over(port_, source);
  EXPECT_EQ(loader.read_until("\n"), greeting());
  loader.write("for the agent");
  loader.close_input();
  EXPECT_EQ(loader.end().out, "for the agent");
  expect_whole();
}

TEST_F(PeerTest, Nodes_pass_on_what_they_got) {
  AgentSource source(source_store_, payload_.digest, key_bytes());
  Loader first(words());
  first.read_until("ready\n");
  first.write(peer_request(port_.port));
  hand_over(port_, source);
  EXPECT_EQ(first.read_until("\n"), greeting());
  first.end();

  AgentSource next(store_, payload_.digest, key_bytes());
  prefix_ = folder_.path() / "next";
  store_ = prefix_ / "store";
  fs::create_directories(store_);
  Loader second(words());
  second.read_until("ready\n");
  second.write(peer_request(port_.port));
  hand_over(port_, next);
  EXPECT_EQ(second.read_until("\n"), greeting());
  second.end();
  expect_whole();
}

TEST_F(PeerTest, IPv6_will_do) {
  LoopbackPort six("::1");
  if (!six.socket) GTEST_SKIP() << "no IPv6 here";
  AgentSource source(source_store_, payload_.digest, key_bytes());
  Loader loader(words());
  loader.read_until("ready\n");
  loader.write(peer_request(six.port, "::1"));
  hand_over(six, source);
  EXPECT_EQ(loader.read_until("\n"), greeting());
}

TEST_F(PeerTest, With_another_key_nothing_is_sent) {
  AgentSource source(source_store_, payload_.digest, key_bytes());
  Loader loader(words());
  loader.read_until("ready\n");
  loader.write(peer_request(port_.port, "127.0.0.1", std::string(64, 'b')));
  hand_over(port_, source);
  EXPECT_EQ(failure_of(loader),
            fmt::format("failed 71 127.0.0.1 port {} refuses to send the agent\n", port_.port));
  expect_that_it_takes_another_source(loader);
}

TEST_F(PeerTest, A_node_with_another_agent_sends_nothing) {
  AgentSource source(source_store_, std::string(64, '2'), key_bytes());
  Loader loader(words());
  loader.read_until("ready\n");
  loader.write(peer_request(port_.port));
  hand_over(port_, source);
  EXPECT_THAT(failure_of(loader), StartsWith("failed 71 "));
  expect_that_it_takes_another_source(loader);
}

TEST_F(PeerTest, A_node_that_lost_the_file_sends_nothing) {
  fs::remove(source_store_ / (payload_.digest + ".lzma"));
  AgentSource source(source_store_, payload_.digest, key_bytes());
  Loader loader(words());
  loader.read_until("ready\n");
  loader.write(peer_request(port_.port));
  hand_over(port_, source);
  EXPECT_THAT(failure_of(loader), StartsWith("failed 71 "));
}

TEST_F(PeerTest, A_link_is_not_what_a_node_sends) {
  auto secret = folder_.write("secret", payload_.wire);
  auto file = source_store_ / (payload_.digest + ".lzma");
  fs::remove(file);
  fs::create_symlink(secret, file);
  AgentSource source(source_store_, payload_.digest, key_bytes());
  Loader loader(words());
  loader.read_until("ready\n");
  loader.write(peer_request(port_.port));
  hand_over(port_, source);
  EXPECT_THAT(failure_of(loader), StartsWith("failed 71 "));
}

TEST_F(PeerTest, A_damaged_copy_is_not_started) {
  std::string damaged = payload_.wire;
  damaged[damaged.size() / 2] ^= 1;
  std::ofstream(source_store_ / (payload_.digest + ".lzma")) << damaged;
  AgentSource source(source_store_, payload_.digest, key_bytes());
  Loader loader(words());
  loader.read_until("ready\n");
  loader.write(peer_request(port_.port));
  hand_over(port_, source);
  EXPECT_THAT(failure_of(loader), ::testing::ContainsRegex("failed 6[56] the "));
  expect_that_it_takes_another_source(loader);
}

TEST_F(PeerTest, A_copy_of_another_length_is_not_taken) {
  std::ofstream(source_store_ / (payload_.digest + ".lzma")) << payload_.wire << "more";
  AgentSource source(source_store_, payload_.digest, key_bytes());
  Loader loader(words());
  loader.read_until("ready\n");
  loader.write(peer_request(port_.port));
  hand_over(port_, source);
  EXPECT_THAT(failure_of(loader), StartsWith("failed 65 127.0.0.1 port "));
  expect_that_it_takes_another_source(loader);
}

// A node that is in order up to some byte.
TEST_F(PeerTest, A_node_that_hangs_up_in_the_middle_is_named) {
  Loader loader(words());
  loader.read_until("ready\n");
  loader.write(peer_request(port_.port));
  UniqueFd node = port_.accept();
  ASSERT_EQ(receive(node.get(), 4), "DSL1");
  send_to(node.get(), std::string(32, 'n'));
  EXPECT_EQ(receive(node.get(), 64).size(), 64u);
  send_to(node.get(), length_of(payload_.wire) + payload_.wire.substr(0, 1000));
  node.reset();
  EXPECT_EQ(
      failure_of(loader),
      fmt::format("failed 72 127.0.0.1 port {} hung up in the middle of the agent\n", port_.port));
  expect_that_it_takes_another_source(loader);
}

TEST_F(PeerTest, A_node_that_falls_silent_is_left) {
  for (const std::string& said :
       {std::string(), std::string(10, 'n'), std::string(32, 'n'),
        std::string(32, 'n') + length_of(payload_.wire) + payload_.wire.substr(0, 1000)}) {
    LoopbackPort port;
    Loader loader(words());
    loader.read_until("ready\n");
    loader.write(peer_request(port.port, "127.0.0.1", kKeyHex, 200));
    UniqueFd node = port.accept();
    send_to(node.get(), said);
    EXPECT_EQ(failure_of(loader),
              fmt::format("failed 73 127.0.0.1 port {} is silent or too slow\n", port.port));
  }
}

TEST_F(PeerTest, A_node_that_trickles_is_left_when_the_time_is_over) {
  Loader loader(words());
  loader.read_until("ready\n");
  loader.write(peer_request(port_.port, "127.0.0.1", kKeyHex, 20'000, 500));
  UniqueFd node = port_.accept();
  send_to(node.get(), std::string(32, 'n') + length_of(payload_.wire));
  std::atomic<bool> over{false};
  std::thread trickle([&] {
    for (std::size_t at = 0; !over && at < payload_.wire.size(); ++at) {
      send_to(node.get(), payload_.wire.substr(at, 1));
      std::this_thread::sleep_for(20ms);
    }
  });
  EXPECT_THAT(failure_of(loader), StartsWith("failed 73 "));
  over = true;
  trickle.join();
}

TEST_F(PeerTest, A_port_where_nobody_listens_is_named) {
  std::uint16_t port = LoopbackPort().port;
  Loader loader(words());
  loader.read_until("ready\n");
  loader.write(peer_request(port));
  EXPECT_EQ(
      failure_of(loader),
      fmt::format("failed 70 cannot connect to 127.0.0.1 port {}: Connection refused\n", port));
  auto end = loader.end();
  EXPECT_EQ(end.code, 70);
  EXPECT_EQ(end.err,
            fmt::format("cannot connect to 127.0.0.1 port {}: Connection refused\n", port));
}

// A listener whose backlog is full answers no more: to who connects it is as good as dead.
TEST_F(PeerTest, An_address_that_is_dead_keeps_nobody_from_the_next) {
  LoopbackPort dead("127.0.0.2", port_.port, 0);
  ASSERT_TRUE(dead.socket);
  std::vector<UniqueFd> waiting;
  for (int i = 0; i < 4; ++i) {
    waiting.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(port_.port);
    ::inet_pton(AF_INET, "127.0.0.2", &at.sin_addr);
    ::connect(waiting.back().get(), reinterpret_cast<sockaddr*>(&at), sizeof at);
  }
  AgentSource source(source_store_, payload_.digest, key_bytes());
  Loader loader(words());
  loader.read_until("ready\n");
  loader.write(peer_request(port_.port, "127.0.0.2 not-an-address 127.0.0.3 127.0.0.1"));
  hand_over(port_, source);
  EXPECT_EQ(loader.read_until("\n"), greeting());
}

TEST_F(PeerTest, A_node_that_does_not_answer_at_all_is_named) {
  LoopbackPort dead("127.0.0.1", 0, 0);
  std::vector<UniqueFd> waiting;
  for (int i = 0; i < 4; ++i) {
    waiting.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(dead.port);
    ::inet_pton(AF_INET, "127.0.0.1", &at.sin_addr);
    ::connect(waiting.back().get(), reinterpret_cast<sockaddr*>(&at), sizeof at);
  }
  Loader loader(words());
  loader.read_until("ready\n");
  loader.write(fmt::format("peer {} {} 300 1000 1000 127.0.0.1\n", kKeyHex, dead.port));
  EXPECT_EQ(failure_of(loader),
            fmt::format("failed 70 cannot connect to 127.0.0.1 port {}: Connection timed out\n",
                        dead.port));
}

// A real agent on a prefix of its own: brought there by a loader, told to listen as the head does.
class RealNode {
 public:
  RealNode(const Payload& payload, const fs::path& prefix)
      : loader_({DSI_LOADER, "load", payload.digest, std::to_string(payload.bytes.size()),
                 std::to_string(payload.wire.size()), "abc123", prefix.string(),
                 (prefix / "store").string()}) {
    EXPECT_EQ(loader_.read_until("ready\n"), kReady);
  }
  void write(const std::string& bytes) { loader_.write(bytes); }
  protocol::Listening listen(std::uint32_t number) {
    EXPECT_EQ(loader_.read_until("\n"), "DSI1 abc123\n");
    EXPECT_EQ(next().type, "hello");
    protocol::ListenRequest request;
    request.self = number;
    request.key = kKeyHex;
    loader_.write(protocol::json_frame("listen", request));
    protocol::Message message = next();
    EXPECT_EQ(message.type, "listening");
    return protocol::body_as<protocol::Listening>(message).value_or(protocol::Listening{});
  }
  int leave() { return loader_.end().code; }

 private:
  protocol::Message next() {
    protocol::Frame frame;
    while (!reader_.next(frame).value_or(false)) {
      std::string byte = loader_.read_bytes(1);
      if (byte.empty()) return {};
      reader_.feed(byte);
    }
    return protocol::read_message(frame).value_or(protocol::Message{});
  }

  Loader loader_;
  protocol::FrameReader reader_;
};

TEST_F(PeerTest, A_real_agent_that_listens_passes_itself_on_from_node_to_node) {
  payload_.bytes = read_file(DSI_AGENT).value_or("");
  payload_.wire = read_file(DSI_AGENT_LZMA).value_or("");
  payload_.digest = sha256_hex(payload_.bytes);
  auto prefix_of = [&](int number) {
    fs::path prefix = folder_.path() / ("node " + std::to_string(number));
    fs::create_directories(prefix / "store");
    return prefix;
  };
  std::vector<std::unique_ptr<RealNode>> nodes;
  nodes.push_back(std::make_unique<RealNode>(payload_, prefix_of(0)));
  nodes.back()->write("stdin\n" + payload_.wire);
  for (int number = 1; number < 4; ++number) {
    protocol::Listening source = nodes.back()->listen(static_cast<std::uint32_t>(number - 1));
    ASSERT_NE(source.port, 0) << source.error;
    nodes.push_back(std::make_unique<RealNode>(payload_, prefix_of(number)));
    nodes.back()->write(peer_request(source.port));
  }
  EXPECT_NE(nodes.back()->listen(3).port, 0);
  for (auto& node : nodes) EXPECT_EQ(node->leave(), 0);
  for (int number = 0; number < 4; ++number) {
    auto store = prefix_of(number) / "store";
    EXPECT_EQ(sha256_hex(read_file(store / (payload_.digest + ".x")).value_or("")),
              payload_.digest);
    EXPECT_EQ(read_file(store / (payload_.digest + ".lzma")).value_or(""), payload_.wire);
  }
}

// ---- The source

struct Served {
  UniqueFd near;  // The test's end.
  explicit Served(AgentSource& source) {
    int pair[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    near.reset(pair[0]);
    send_to(near.get(), agent::kLoaderMagic);
    source.serve(UniqueFd(pair[1]));
  }
};

TEST_F(PeerTest, A_stranger_gets_a_nonce_and_nothing_else) {
  AgentSource source(source_store_, payload_.digest, key_bytes());
  Served one(source);
  Served two(source);
  std::string nonce = receive(one.near.get(), 32);
  EXPECT_EQ(nonce.size(), 32u);
  EXPECT_NE(nonce, receive(two.near.get(), 32)) << "a proof must not be good twice";
  send_to(one.near.get(), std::string(64, 'p'));
  EXPECT_EQ(receive(one.near.get(), 1), "");
  // The other's proof, played again.
  std::string digest;
  for (std::size_t i = 0; i < 64; i += 2) {
    digest += static_cast<char>(std::stoi(payload_.digest.substr(i, 2), nullptr, 16));
  }
  std::string proven = "DSL1" + nonce + digest;
  std::array<std::uint8_t, 32> proof{};
  loader_hmac(key_bytes().data(), proven.data(), proven.size(), proof.data());
  send_to(two.near.get(), std::string(proof.begin(), proof.end()) + digest);
  EXPECT_EQ(receive(two.near.get(), 1), "");
}

TEST_F(PeerTest, A_fifth_at_the_same_time_is_hung_up_on_and_a_later_one_is_not) {
  AgentSource source(source_store_, payload_.digest, key_bytes());
  {
    std::vector<std::unique_ptr<Served>> four;
    for (int i = 0; i < 4; ++i) {
      four.push_back(std::make_unique<Served>(source));
      EXPECT_EQ(receive(four.back()->near.get(), 32).size(), 32u);
    }
    Served fifth(source);
    EXPECT_EQ(receive(fifth.near.get(), 1), "");
  }
  // The four hung up; each place is free once its thread has seen that.
  for (int tries = 0; tries < 300; ++tries) {
    Served later(source);
    if (receive(later.near.get(), 32).size() == 32) return;
    std::this_thread::sleep_for(100ms);
  }
  FAIL() << "no place ever became free";
}

TEST_F(PeerTest, Who_takes_too_long_is_cut_off) {
  AgentSource source(source_store_, payload_.digest, key_bytes(), {4, 200ms});
  Served slow(source);
  EXPECT_EQ(receive(slow.near.get(), 33).size(), 32u) << "it hangs up by itself";
}

TEST_F(PeerTest, A_source_that_goes_waits_for_nobody) {
  auto source = std::make_unique<AgentSource>(source_store_, payload_.digest, key_bytes());
  Served stalled(*source);
  EXPECT_EQ(receive(stalled.near.get(), 32).size(), 32u);
  source.reset();
  EXPECT_EQ(receive(stalled.near.get(), 1), "");
}

}  // namespace
}  // namespace dsi::testing

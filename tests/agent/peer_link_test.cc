// What comes from another node is hostile until it is proved otherwise.

#include "orchestrator/agent/peer_link.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <random>

#include "tests/agent/swarm.h"

namespace dsi::agent {
namespace {

using State = PeerLink::State;

struct Pair {
  UniqueFd one;
  UniqueFd two;
};

Pair connected() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0) std::abort();
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

std::string take(int fd) {
  char buffer[1 << 16];
  ssize_t n = ::recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
  return {buffer, static_cast<std::size_t>(std::max<ssize_t>(n, 0))};
}

void give(int fd, std::string_view bytes) {
  ASSERT_EQ(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
}

// A client and a server whose bytes pass through the test's hands.
class PeerLinkTest : public ::testing::Test {
 protected:
  explicit PeerLinkTest(const std::string& server_key = testing::kRunKey)
      : ready_(prepare_cryptography()),
        key_(*run_key(testing::kRunKey)),
        client_(std::move(a_.one), PeerLink::Role::kClient, key_),
        server_(std::move(b_.one), PeerLink::Role::kServer, *run_key(server_key)) {
    client_.flush();
  }
  void SetUp() override { ASSERT_TRUE(ready_); }

  std::string from_client() { return take(a_.two.get()); }
  std::string from_server() { return take(b_.two.get()); }
  void to_client(std::string_view bytes) {
    give(a_.two.get(), bytes);
    client_.receive();
  }
  void to_server(std::string_view bytes) {
    give(b_.two.get(), bytes);
    server_.receive();
  }
  void shake_hands() {
    Record record;
    to_server(from_client());
    EXPECT_FALSE(server_.next(record));
    server_.flush();
    to_client(from_server());
    EXPECT_FALSE(client_.next(record));
    ASSERT_EQ(client_.state(), State::kOpen);
    ASSERT_EQ(server_.state(), State::kOpen);
  }
  std::string sealed(RecordType type, std::string_view payload) {
    client_.put(type, payload);
    client_.flush();
    return from_client();
  }

  Pair a_ = connected();
  Pair b_ = connected();
  bool ready_;
  RunKey key_;
  PeerLink client_;
  PeerLink server_;
};

TEST_F(PeerLinkTest, Records_arrive_as_they_were_put_however_the_bytes_are_cut) {
  shake_hands();
  std::string large(kMaxRecordPayload, 'x');
  std::string bytes = sealed(RecordType::kPing, {});
  bytes += sealed(RecordType::kIndex, "abc");
  EXPECT_EQ(bytes.find("abc"), std::string::npos) << "in clear";
  Record record;
  std::vector<std::string> came;
  for (char c : bytes) {
    to_server({&c, 1});
    while (server_.next(record)) came.emplace_back(record.payload);
  }
  EXPECT_THAT(came, ::testing::ElementsAre("", "abc"));
  client_.put(RecordType::kChunk, large);
  for (int i = 0; i < 100 && came.size() < 3; ++i) {
    client_.flush();
    std::string part = from_client();
    if (!part.empty()) to_server(part);
    while (server_.next(record)) came.emplace_back(record.payload);
  }
  ASSERT_EQ(came.size(), 3u);
  EXPECT_EQ(came[2], large);
}

TEST_F(PeerLinkTest, A_repeated_or_left_out_or_moved_record_is_forged) {
  shake_hands();
  std::string one = sealed(RecordType::kIndex, "one");
  std::string two = sealed(RecordType::kIndex, "two");
  Record record;
  to_server(one);
  ASSERT_TRUE(server_.next(record));
  to_server(one);
  EXPECT_FALSE(server_.next(record));
  EXPECT_EQ(server_.state(), State::kForged);
}

TEST_F(PeerLinkTest, A_record_that_was_left_out_is_noticed) {
  shake_hands();
  (void)sealed(RecordType::kIndex, "one");
  Record record;
  to_server(sealed(RecordType::kIndex, "two"));
  EXPECT_FALSE(server_.next(record));
  EXPECT_EQ(server_.state(), State::kForged);
}

TEST_F(PeerLinkTest, Our_own_record_sent_back_is_forged) {
  shake_hands();
  Record record;
  to_client(sealed(RecordType::kIndex, "one"));
  EXPECT_FALSE(client_.next(record));
  EXPECT_EQ(client_.state(), State::kForged);
}

TEST_F(PeerLinkTest, Every_flipped_bit_of_a_record_is_noticed) {
  // One connection for each: after the first forgery there is no second.
  for (std::size_t bit = 0; bit < 8 * 28; ++bit) {
    Pair pair = connected();
    PeerLink client(std::move(pair.one), PeerLink::Role::kClient, key_);
    Pair other = connected();
    PeerLink server(std::move(other.one), PeerLink::Role::kServer, key_);
    Record record;
    client.flush();
    give(other.two.get(), take(pair.two.get()));
    server.receive();
    (void)server.next(record);
    server.flush();
    give(pair.two.get(), take(other.two.get()));
    client.receive();
    (void)client.next(record);
    client.put(RecordType::kIndex, "seven b");
    client.flush();
    std::string bytes = take(pair.two.get());
    ASSERT_EQ(bytes.size(), 28u);
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << bit % 8);
    give(other.two.get(), bytes);
    server.receive();
    EXPECT_FALSE(server.next(record)) << bit;
  }
}

TEST_F(PeerLinkTest, Every_flipped_bit_of_a_hello_is_refused) {
  std::string hello = from_client();
  for (std::size_t bit = 0; bit < 8 * hello.size(); ++bit) {
    Pair pair = connected();
    PeerLink server(std::move(pair.one), PeerLink::Role::kServer, key_);
    std::string bytes = hello;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << bit % 8);
    give(pair.two.get(), bytes);
    server.receive();
    Record record;
    EXPECT_FALSE(server.next(record));
    EXPECT_EQ(server.state(), State::kRefused) << bit;
    server.flush();
    EXPECT_EQ(take(pair.two.get()), "") << "an answer to who has no key";
  }
  to_server(hello);
  Record record;
  (void)server_.next(record);
  server_.flush();
  std::string answer = from_server();
  for (std::size_t byte : {std::size_t{0}, std::size_t{1}, answer.size() - 1}) {
    Pair pair = connected();
    // The same connection's answer cannot be had twice, so each is an answer to another hello too.
    PeerLink client(std::move(pair.one), PeerLink::Role::kClient, key_);
    std::string bytes = answer;
    bytes[byte] = static_cast<char>(bytes[byte] ^ 3);
    give(pair.two.get(), bytes);
    client.receive();
    EXPECT_FALSE(client.next(record));
    EXPECT_EQ(client.state(), State::kRefused);
  }
  // A cipher that was not the server's choice.
  answer[0] = static_cast<char>(answer[0] ^ 3);
  to_client(answer);
  EXPECT_FALSE(client_.next(record));
  EXPECT_EQ(client_.state(), State::kRefused);
}

TEST_F(PeerLinkTest, Lengths_that_cannot_be_are_refused_before_any_memory_is_taken) {
  for (std::uint32_t length : {0u, 1u, 16u, 0x7fffffffu, 0xffffffffu,
                               static_cast<std::uint32_t>(kMaxRecordPayload + 18)}) {
    Pair pair = connected();
    PeerLink client(std::move(pair.one), PeerLink::Role::kClient, key_);
    Pair other = connected();
    PeerLink server(std::move(other.one), PeerLink::Role::kServer, key_);
    Record record;
    client.flush();
    give(other.two.get(), take(pair.two.get()));
    server.receive();
    (void)server.next(record);
    give(other.two.get(), number_bytes(length));
    server.receive();
    EXPECT_FALSE(server.next(record));
    EXPECT_EQ(server.state(), State::kForged) << length;
  }
}

TEST_F(PeerLinkTest, Random_bytes_never_open_a_link) {
  std::mt19937 engine(3);
  for (int i = 0; i < 300; ++i) {
    for (PeerLink::Role role : {PeerLink::Role::kClient, PeerLink::Role::kServer}) {
      Pair pair = connected();
      PeerLink link(std::move(pair.one), role, key_);
      std::string bytes(engine() % 400, '\0');
      for (char& c : bytes) c = static_cast<char>(engine());
      if (i % 2 == 0) bytes.insert(0, "DSP1\3");
      give(pair.two.get(), bytes);
      link.receive();
      Record record;
      EXPECT_FALSE(link.next(record));
      EXPECT_NE(link.state(), State::kOpen);
    }
  }
}

TEST(PeerBits, Are_packed_and_unpacked_and_another_size_does_not_fit) {
  for (std::size_t size : {0, 1, 7, 8, 9, 64, 100}) {
    std::vector<bool> bits(size);
    for (std::size_t i = 0; i < size; ++i) bits[i] = i % 3 == 0;
    std::string bytes = pack_bits(bits);
    EXPECT_EQ(bytes.size(), (size + 7) / 8);
    std::vector<bool> again(size);
    EXPECT_TRUE(unpack_bits(bytes, again));
    EXPECT_EQ(again, bits);
    EXPECT_FALSE(unpack_bits(bytes + "x", again));
    if (size > 0) {
      EXPECT_FALSE(unpack_bits(bytes.substr(1), again));
    }
  }
}

TEST(RunKeys, Are_64_digits_and_are_not_told_in_an_error) {
  EXPECT_TRUE(run_key(testing::kRunKey));
  for (std::string bad : {std::string(), std::string("12"), std::string(64, 'g'),
                          std::string(testing::kRunKey) + "0"}) {
    auto key = run_key(bad);
    ASSERT_FALSE(key);
    EXPECT_EQ(key.error().what, "the key of the run is malformed");
  }
}

}  // namespace
}  // namespace dsi::agent

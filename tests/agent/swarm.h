#pragma once

// A head of a swarm of real agents, for tests: it decides nothing by itself.

#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "orchestrator/agent/peer_link.h"
#include "orchestrator/distribute/index.h"
#include "tests/agent/head.h"

namespace dsi::testing {

inline constexpr char kRunKey[] =
    "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

// From here on this process and those that it starts are in a network namespace of their own, where
// there is only loopback: nothing in these tests listens on this machine's addresses. False: this
// user may not.
bool enter_own_network();

std::string random_text(std::size_t size, unsigned seed);
// A zstd stream that gives `data` to who has `base`.
std::string compress_patch(std::string_view base, std::string_view data);

// What a swarm exchanges.
struct TestStream {
  distribute::ChunkIndex index;
  std::string bytes;
  std::string encoded;

  void add(const std::string& digest, std::uint64_t size, const std::string& wire,
           const std::string& base = {});
  void cut(std::uint32_t chunk_size, std::uint32_t stripes);
  std::string_view chunk(std::uint32_t number) const;
  protocol::SwarmRequest request() const;
};

// Every file of the release that is not among `but`.
TestStream stream_of(const TestRelease& release, std::uint32_t chunk_size, std::uint32_t stripes);

struct SwarmNode {
  std::uint32_t number = 0;
  std::filesystem::path prefix;
  std::unique_ptr<Head> head;
  protocol::Listening listening;
  std::optional<protocol::Need> need;
  std::optional<protocol::Joined> joined;
  protocol::Have have;
  std::vector<protocol::PeerFault> faults;
  bool complete = false;
  std::optional<protocol::HostResult> result;
  bool gone = false;

  std::uint32_t chunks() const;
  bool has_fault(const std::string& kind) const;
};

class TestSwarm {
 public:
  explicit TestSwarm(TestStream given) : stream(std::move(given)) {}

  SwarmNode& add(const std::string& agent, const std::filesystem::path& prefix,
                 const HeadSettings& settings = {});
  // "listen", and waits for the answer.
  void listen(SwarmNode& node, const std::string& key = kRunKey, const std::string& ports = {},
              std::uint64_t rate = 0);
  // "install" up to "joined".
  void join(SwarmNode& node, const TestRelease& release);
  void follow(SwarmNode& child, std::uint32_t stripe, const SwarmNode* parent);
  void follow_all(SwarmNode& child, const SwarmNode* parent);
  void send_index(SwarmNode& node);
  void send_chunk(SwarmNode& node, std::uint32_t number);
  void send_chunks(SwarmNode& node, std::uint32_t begin = 0, std::uint32_t end = ~0u);

  // Takes what the nodes say until `done`; false if that takes a minute.
  bool wait(const std::function<bool()>& done);
  bool wait_for_results();

  TestStream stream;
  std::list<SwarmNode> nodes;

 private:
  void note(SwarmNode& node, const protocol::Message& message);
};

// A node that has the key and means harm, or does its duty in part. `serve` is called once for each
// connection that has proved the key, after the follower's first record.
class BadPeer {
 public:
  using Serve = std::function<void(agent::PeerLink&)>;
  BadPeer(std::uint32_t number, const TestStream& stream, const std::string& key, Serve serve);
  ~BadPeer();
  std::uint16_t port() const { return port_; }
  // As a parent.
  protocol::Follow as_parent(std::uint32_t stripe) const;

  // For `serve`: waits for the next record of a type; false if the connection ends first.
  static bool wait_for(agent::PeerLink& link, agent::RecordType type);
  // Of a client: until the server has answered or has not.
  static agent::PeerLink& wait_until_open(agent::PeerLink& link);
  static void send(agent::PeerLink& link);
  static void put_chunk(agent::PeerLink& link, std::uint32_t number, std::string_view bytes);

 private:
  void run();

  std::uint32_t number_;
  const TestStream& stream_;
  agent::RunKey key_;
  Serve serve_;
  std::uint16_t port_ = 0;
  UniqueFd listener_;
  std::thread thread_;
};

// A connection to a node on this machine; with a deadline for reading.
UniqueFd connect_to(std::uint16_t port);
bool is_open(std::uint16_t port);

}  // namespace dsi::testing

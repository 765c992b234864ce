#pragma once

// One set of objects and the nodes that need exactly it: the head's half of an exchange.
//
// The scheduler decides, each host's thread acts: it takes its next Step, sends it, and tells what
// the node answers. Whenever there is a new step for a host its `wake` descriptor becomes readable.
// All functions are thread-safe.

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "orchestrator/agent/protocol.h"
#include "orchestrator/base/result.h"
#include "orchestrator/base/sync.h"
#include "orchestrator/base/unique_fd.h"
#include "orchestrator/distribute/index.h"
#include "orchestrator/distribute/scheduler.h"

namespace dsi::distribute {

// An object and the local file that holds its bytes.
struct ObjectFile {
  WireObject object;
  std::filesystem::path path;
};

// What the head sends to one host next, in this order.
struct Step {
  bool index = false;  // The encoded index.
  std::vector<protocol::Follow> follow;
  std::optional<std::uint32_t> chunk;
};

// What happened, for the record.
struct SwarmStory {
  std::size_t hosts = 0;
  std::uint64_t stream_bytes = 0;
  std::uint32_t chunk_size = 0;
  std::uint32_t chunks = 0;
  std::uint32_t stripes = 0;
  std::size_t depth = 0;  // The deepest that a tree was.
  std::uint64_t assignments = 0;
  std::uint64_t repairs = 0;
  std::uint64_t chunks_from_head = 0;
  std::uint64_t bytes_between_nodes = 0;
};

class Swarm {
 public:
  // Reads and hashes every object. `expected`: how many nodes will probably take part.
  static Result<std::unique_ptr<Swarm>> make(const std::vector<ObjectFile>& objects,
                                             std::size_t expected);

  const std::string& index() const { return encoded_; }  // Encoded
  const std::string& index_digest() const { return digest_; }
  std::uint64_t stream_size() const { return stream_size_; }
  // The bytes of chunk `number`, for a 'C' frame.
  Result<std::string> read_chunk(std::uint32_t number) const;

  // `listening` says how others reach the host. The first chunk is sent once everybody who is
  // enrolled has joined, or has not for a while.
  void enroll(PeerId peer, const protocol::Listening& listening);
  // Readable when next() has something new.
  int wake(PeerId peer) const;
  Step next(PeerId peer);

  void joined(PeerId peer, const protocol::Joined& joined);
  // True if the node has got something since the last time.
  bool have(PeerId peer, const protocol::Have& have);
  void fault(PeerId peer, const protocol::PeerFault& fault);
  // Every file is whole there; the node goes on serving others.
  void completed(PeerId peer);
  // Gone; it serves nobody any more.
  void leave(PeerId peer);
  void tick();

  // Bytes of verified chunks on all nodes, and how many there are to be.
  std::uint64_t bytes_done() const;
  std::uint64_t bytes_wanted() const;
  SwarmStory story() const;
  std::vector<Remark> take_remarks();

 private:
  struct Member {
    UniqueFd wake;
    protocol::Listening listening;
    bool joined = false;
    bool complete = false;
    bool gone = false;
    bool has_index = false;
    std::vector<bool> here;  // Chunks that it had when it joined, or that the head has sent.
    std::vector<std::uint32_t> counts;
    // A stripe whose parent is the head.
    struct Feed {
      std::uint32_t next = 0;  // Chunk with which the head goes on.
      std::uint32_t sure = 0;  // Chunks of the stripe that are there or on their way.
    };
    std::map<std::uint32_t, Feed> fed;
    Time progress{};                       // When `counts` last grew.
    std::vector<protocol::Follow> follow;  // To be said.
    std::uint64_t bytes = 0;               // Verified there.
    std::uint64_t received = 0;            // From other nodes.
  };
  struct State {
    std::unique_ptr<Scheduler> scheduler;
    std::map<PeerId, Member> members;
    bool started = false;
    std::optional<Time> first_join;
    std::vector<Remark> remarks;
    SwarmStory story;
  };

  Swarm(ChunkIndex index, std::vector<ObjectFile> objects);
  static Time now();
  void start_if_ready(State& state) const;
  // Hands out what the scheduler wants done.
  void act(State& state);
  Member::Feed begin_feed(const Member& child, std::uint32_t stripe) const;
  std::optional<std::uint32_t> next_chunk(Member& member) const;
  void count(Member& member, const std::vector<std::uint32_t>& counts) const;

  ChunkIndex index_;
  std::vector<ObjectFile> objects_;
  std::vector<UniqueFd> files_;
  std::string encoded_;
  std::string digest_;
  std::uint64_t stream_size_ = 0;
  mutable Sync<State> state_;
};

}  // namespace dsi::distribute

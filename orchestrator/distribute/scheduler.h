#pragma once

// Who gets which stripe from whom: a pure function of what has happened.
//
// Every stripe is a tree over all nodes of the swarm with the head at its root. Each node is inside
// (has children) in about one tree and a leaf in the others, so that with as many children as there
// are stripes it sends at the rate at which it receives: the whole swarm sends at its links' rate,
// and the head sends every chunk once. A tree's depth is logarithmic, so filling the pipeline costs
// stripes · log_stripes(nodes) chunks, whatever the number of nodes.
//
// Trees break: nodes die, stand still, or are ten times slower than the others. The scheduler hears
// of it (events), and names other parents (actions). A node that lags in everything keeps its place
// at the edge and gives up its children; a parent all of whose children lag is relieved of them; a
// node that no other can reach is fed by the head.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace dsi::distribute {

using PeerId = std::uint32_t;                // The host's number in the run.
inline constexpr PeerId kHead = ~PeerId{0};  // As a parent.
using Time = std::chrono::duration<double>;  // Since any fixed moment; never decreases.

struct SwarmShape {
  std::uint32_t chunks = 0;
  std::uint32_t chunk_size = 0;  // Bytes
  std::uint32_t stripes = 1;     // Chunk i belongs to stripe i % stripes.
};

struct Newcomer {
  PeerId peer = 0;
  bool can_serve = true;  // Others can connect to it.
  // Verified chunks of each stripe that it has already; empty: none.
  std::vector<std::uint32_t> counts;
  std::string rack;  // Nodes of one rack reach each other cheaply; empty: not known.
};

enum class Fault {
  kUnreachable,  // The child cannot connect to the parent.
  kClosed,       // The connection broke.
  kSilent,       // Nothing came for too long although the connection stands.
  kCorrupt,      // The parent sent a chunk that is not what the index says, or forged a record.
};

// The child shall take the stripe from this parent from now on.
struct Assignment {
  PeerId child = 0;
  std::uint32_t stripe = 0;
  PeerId parent = kHead;
  friend bool operator==(const Assignment&, const Assignment&) = default;
};

// For the report and the record.
struct Remark {
  PeerId peer = 0;
  std::string text;  // "sent a chunk that was not what it should be"; follows the host's name.
};

struct SwarmNumbers {
  std::uint64_t assignments = 0;  // Since the beginning.
  std::uint64_t repairs = 0;      // Those that replaced another parent.
  std::size_t members = 0;        // Now.
  std::size_t complete = 0;
  std::size_t slow = 0;       // Made leaves.
  std::size_t depth = 0;      // Of the deepest tree when a parent was last named, in hops.
  std::size_t from_head = 0;  // Stripes, over all nodes, that the head feeds now.
};

class Scheduler {
 public:
  explicit Scheduler(SwarmShape shape);
  ~Scheduler();

  // Events. Those of a peer that is not a member (any more) are ignored.
  // Before start() newcomers are collected, so that the first trees are built knowing everybody;
  // after it each gets a place at once.
  void join(const Newcomer& newcomer, Time now);
  void start(Time now);
  void have(PeerId peer, const std::vector<std::uint32_t>& counts, Time now);
  void fault(PeerId child, PeerId parent, std::uint32_t stripe, Fault fault, Time now);
  // Gone, in whatever way: its children get other parents.
  void leave(PeerId peer, Time now);
  // To be called every 100 ms or so: finds who misses its deadline.
  void tick(Time now);

  // What is to be done since the last call, in order.
  std::vector<Assignment> take_assignments();
  std::vector<Remark> take_remarks();

  // True if every member has every chunk.
  bool complete() const;
  // True if no member takes anything from this one: it may be dismissed once it is complete.
  bool is_free(PeerId peer) const;
  SwarmNumbers numbers() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The number of stripes for so many nodes and chunks.
std::uint32_t choose_stripes(std::size_t nodes, std::uint32_t chunks);

}  // namespace dsi::distribute

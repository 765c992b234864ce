#pragma once

// The trees of a swarm, one for each stripe, and the rules by which a node gets its place in them.
//
// A node has as many places for children as there are stripes, over all stripes together. It is at
// home in one stripe, where it stands inside the tree; in the others it is a leaf. All places
// together are just enough: n·m, and m at the head, for n·m stripes to be fed. Two rules keep it so
// when nodes fail. A child that is slow takes (nearly) nothing from its parent, so it occupies no
// place. A node that has a stripe whole needs no parent for it, so it occupies none either, and is
// as good a root as the head.
//
// No clock and no judgment here: scheduler.cc decides who is slow and who is gone.

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "orchestrator/distribute/scheduler.h"

namespace dsi::distribute {

using Index = std::uint32_t;  // Of a node in Trees; one that left keeps its own for good.
inline constexpr Index kHeadNode = 0;
inline constexpr Index kNobody = ~Index{0};

// What a node takes of one stripe, and from whom.
struct Flow {
  Index parent = kNobody;
  std::uint32_t position = 0;  // In the parent's children.
  std::uint32_t count = 0;     // Verified chunks.
  std::uint32_t seen = 0;      // The count at the last look; for scheduler.cc.
  float debt = 0;              // Chunks that should have come and have not; for scheduler.cc.
  float since = 0;             // When this parent was assigned.
  bool untold = false;         // The assignment is still to be taken.
};

struct Child {
  std::uint32_t stripe = 0;
  Index node = kNobody;
};

struct Node {
  PeerId peer = 0;
  std::uint32_t rack = 0;  // 0: not known.
  std::uint32_t home = 0;
  std::uint32_t unfinished = 0;  // Stripes that it has not all of.
  std::uint32_t load = 0;        // Children that are not slow.
  bool member = false;
  bool can_serve = true;    // Others can connect to it.
  bool slow = false;        // A leaf for now.
  bool corrupt = false;     // A leaf for good.
  bool head_only = false;   // It cannot connect to others.
  bool suspect = false;     // It may be dead: nobody is placed below it for now.
  Index free_at = kNobody;  // Where it stands in the list of nodes with a free place.
  Index server_at = kNobody;
  std::vector<Flow> flows;  // By stripe; the head has none.
  std::vector<Child> children;
  std::vector<std::pair<Index, float>> avoided;  // As parents, until then.

  bool serves() const { return member && can_serve && !slow && !corrupt; }
};

class Trees {
 public:
  explicit Trees(const SwarmShape& shape);

  std::uint32_t stripes() const { return shape_.stripes; }
  std::uint32_t chunks_in(std::uint32_t stripe) const { return stripe_chunks_[stripe]; }
  Node& node(Index i) { return nodes_[i]; }
  const Node& node(Index i) const { return nodes_[i]; }
  Index end() const { return static_cast<Index>(nodes_.size()); }  // Nodes are [1, end).
  std::size_t members() const { return members_; }
  // How many members have all of the stripe.
  std::size_t whole(std::uint32_t stripe) const { return whole_[stripe]; }
  // kNobody if it is not a member.
  Index find(PeerId peer) const;
  // The node has all of the stripe.
  bool has(Index i, std::uint32_t stripe) const {
    return i == kHeadNode || nodes_[i].flows[stripe].count >= stripe_chunks_[stripe];
  }

  Index add(const Newcomer& newcomer);
  // Places all members at once.
  void build(float now);
  // Places one more.
  void insert(Index i, float now);
  // Its children are without a parent afterwards and are returned.
  std::vector<Child> remove(Index i);

  // Gives the child another parent (or its first) for the stripe, the old one if nothing is better.
  void place(Index child, std::uint32_t stripe, float now, Index hint = kNobody);
  // The same for all; those with a subtree of their own first.
  void place_all(std::vector<Child> orphans, float now, Index hint = kNobody);
  // Its children get other parents, and the head is relieved of it; for one that does not serve.
  void evacuate(Index i, float now);
  // Moves children of who has too many to free places, if there are any again.
  void relieve(float now);
  void avoid(Index child, Index parent, float until);
  // It has so many verified chunks now. Once it has all it needs no parent any more.
  void count(Index i, std::uint32_t stripe, std::uint32_t chunks);
  void tell_again(Index child, std::uint32_t stripe);

  // By so many chunks counts of nodes that are equally far may differ, since they are reported at
  // different times.
  void set_slack(std::uint32_t chunks) { slack_ = chunks; }
  // To be called when what Node::serves() rests on has changed.
  void set_slow(Index i, bool slow);
  void update(Index i);

  // Hops from the head or from who has all of the stripe; kNobody if the way up ends elsewhere or
  // leads through `without`.
  std::uint32_t depth(Index i, std::uint32_t stripe, Index without = kNobody) const;
  // The largest depth after the last change of parents.
  std::uint32_t deepest();
  // How many members have everything.
  std::size_t complete() const { return complete_; }
  bool has_children_in(Index i, std::uint32_t stripe) const;
  std::vector<Assignment> take_assignments();

  // Since the beginning.
  std::uint64_t assignments() const { return assignments_; }
  std::uint64_t repairs() const { return repairs_; }

 private:
  void build_stripe(std::uint32_t stripe, const std::vector<Index>& order, float now,
                    std::vector<Child>& left_over);
  void attach(Index child, std::uint32_t stripe, Index parent, float now);
  void detach(Index child, std::uint32_t stripe);
  bool may_feed(Index parent, Index child, std::uint32_t stripe, float now) const;
  Index choose(Index child, std::uint32_t stripe, float now, Index hint);
  bool is_behind(Index parent, Index child, std::uint32_t stripe) const {
    return nodes_[parent].flows[stripe].count + slack_ < nodes_[child].flows[stripe].count;
  }
  Index choose_free(Index child, std::uint32_t stripe, float now, Index hint, bool ahead);
  Index choose_crowded(Index child, std::uint32_t stripe, float now);
  bool splice(Index i, float now);

  const SwarmShape shape_;
  std::vector<std::uint32_t> stripe_chunks_;
  std::vector<Node> nodes_;
  std::unordered_map<PeerId, Index> by_peer_;
  std::unordered_map<std::string, std::uint32_t> racks_;
  std::vector<Index> free_;               // Who serves and has a free place.
  std::vector<Index> servers_;            // Who serves.
  std::vector<std::uint32_t> homes_;      // How many are at home in each stripe.
  std::vector<std::uint32_t> head_load_;  // Children of the head in each stripe that are not slow.
  std::vector<std::uint32_t> whole_;      // How many members have all of each stripe.
  std::vector<Child> told_;               // Flows whose assignment is to be taken, in order.
  std::size_t members_ = 0;
  std::size_t complete_ = 0;
  std::uint32_t deepest_ = 0;
  bool deepest_is_known_ = true;
  std::uint32_t slack_ = 4;
  std::size_t turn_ = 0;  // Where the next search begins, so that not the same are found always.
  std::uint64_t assignments_ = 0;
  std::uint64_t repairs_ = 0;
};

}  // namespace dsi::distribute

#include "orchestrator/distribute/trees.h"

#include <algorithm>
#include <limits>

namespace dsi::distribute {

namespace {

// How many candidates one search looks at. Free places are few as a rule; where they are many, any
// of so many will do.
constexpr std::size_t kFreeLooks = 96;
constexpr std::size_t kCrowdedLooks = 64;
constexpr std::size_t kSpliceLooks = 48;

// The head feeds more than one node with a stripe only if nodes would have this many times the
// children that they can keep up with.
constexpr std::uint32_t kCrowd = 3;

// In hops. A way through the uplink of a rack is dear; a parent that has less than the child is one
// that the child would wait for.
constexpr std::uint32_t kOtherRackPenalty = 2;
constexpr std::uint32_t kBehindPenalty = 8;

void drop_from(std::vector<Index>& list, std::vector<Node>& nodes, Index Node::*at, Index i) {
  Index hole = nodes[i].*at;
  if (hole == kNobody) return;
  list[hole] = list.back();
  nodes[list[hole]].*at = hole;
  list.pop_back();
  nodes[i].*at = kNobody;
}

void add_to(std::vector<Index>& list, std::vector<Node>& nodes, Index Node::*at, Index i) {
  if (nodes[i].*at != kNobody) return;
  nodes[i].*at = static_cast<Index>(list.size());
  list.push_back(i);
}

}  // namespace

Trees::Trees(const SwarmShape& shape)
    : shape_(shape),
      nodes_(1),
      homes_(shape.stripes),
      head_load_(shape.stripes),
      whole_(shape.stripes) {
  nodes_[kHeadNode].peer = kHead;
  nodes_[kHeadNode].member = true;
  for (std::uint32_t s = 0; s < shape.stripes; ++s) {
    stripe_chunks_.push_back((shape.chunks + shape.stripes - 1 - s) / shape.stripes);
  }
  racks_.emplace("", 0);
}

Index Trees::find(PeerId peer) const {
  auto found = by_peer_.find(peer);
  return found == by_peer_.end() ? kNobody : found->second;
}

Index Trees::add(const Newcomer& newcomer) {
  Index i = end();
  by_peer_[newcomer.peer] = i;
  Node& node = nodes_.emplace_back();
  node.peer = newcomer.peer;
  node.member = true;
  node.can_serve = newcomer.can_serve;
  auto rack = racks_.emplace(newcomer.rack, static_cast<std::uint32_t>(racks_.size())).first;
  node.rack = rack->second;
  node.flows.resize(stripes());
  for (std::uint32_t s = 0; s < stripes(); ++s) {
    if (s < newcomer.counts.size()) {
      node.flows[s].count = std::min(newcomer.counts[s], stripe_chunks_[s]);
    }
    node.flows[s].seen = node.flows[s].count;
    ++(has(i, s) ? whole_[s] : node.unfinished);
  }
  // The head overflows for its own reasons, a node never: it gets its places once.
  node.children.reserve(stripes());
  ++members_;
  if (node.unfinished == 0) ++complete_;
  update(i);
  return i;
}

std::vector<Child> Trees::remove(Index i) {
  for (std::uint32_t s = 0; s < stripes(); ++s) detach(i, s);
  std::vector<Child> orphans = nodes_[i].children;
  for (Child child : orphans) detach(child.node, child.stripe);
  for (std::uint32_t s = 0; s < stripes(); ++s) whole_[s] -= has(i, s) ? 1 : 0;
  --members_;
  if (nodes_[i].unfinished == 0) --complete_;
  nodes_[i].member = false;
  update(i);
  by_peer_.erase(nodes_[i].peer);
  return orphans;
}

void Trees::update(Index i) {
  if (i == kHeadNode) return;
  Node& node = nodes_[i];
  if (node.serves()) {
    add_to(servers_, nodes_, &Node::server_at, i);
  } else {
    drop_from(servers_, nodes_, &Node::server_at, i);
  }
  if (node.serves() && node.load < stripes()) {
    add_to(free_, nodes_, &Node::free_at, i);
  } else {
    drop_from(free_, nodes_, &Node::free_at, i);
  }
}

void Trees::set_slow(Index i, bool slow) {
  if (nodes_[i].slow == slow) return;
  nodes_[i].slow = slow;
  for (std::uint32_t s = 0; s < stripes(); ++s) {
    Index parent = nodes_[i].flows[s].parent;
    if (parent == kNobody) continue;
    std::uint32_t step = slow ? ~0u : 1u;
    nodes_[parent].load += step;
    if (parent == kHeadNode) head_load_[s] += step;
    update(parent);
  }
  update(i);
}

void Trees::attach(Index child, std::uint32_t stripe, Index parent, float now) {
  Flow& flow = nodes_[child].flows[stripe];
  flow.parent = parent;
  flow.position = static_cast<std::uint32_t>(nodes_[parent].children.size());
  flow.seen = flow.count;
  flow.debt = 0;
  flow.since = now;
  deepest_is_known_ = false;
  nodes_[parent].children.push_back({stripe, child});
  if (!nodes_[child].slow) {
    ++nodes_[parent].load;
    if (parent == kHeadNode) ++head_load_[stripe];
    update(parent);
  }
  tell_again(child, stripe);
}

void Trees::tell_again(Index child, std::uint32_t stripe) {
  Flow& flow = nodes_[child].flows[stripe];
  if (flow.untold) return;
  flow.untold = true;
  told_.push_back({stripe, child});
}

void Trees::detach(Index child, std::uint32_t stripe) {
  Flow& flow = nodes_[child].flows[stripe];
  if (flow.parent == kNobody) return;
  Index parent = flow.parent;
  std::vector<Child>& siblings = nodes_[parent].children;
  Child last = siblings.back();
  siblings[flow.position] = last;
  nodes_[last.node].flows[last.stripe].position = flow.position;
  siblings.pop_back();
  flow.parent = kNobody;
  if (nodes_[child].slow) return;
  --nodes_[parent].load;
  if (parent == kHeadNode) --head_load_[stripe];
  update(parent);
}

void Trees::count(Index i, std::uint32_t stripe, std::uint32_t chunks) {
  if (chunks <= nodes_[i].flows[stripe].count || has(i, stripe)) return;
  nodes_[i].flows[stripe].count = std::min(chunks, stripe_chunks_[stripe]);
  if (!has(i, stripe)) return;
  ++whole_[stripe];
  if (--nodes_[i].unfinished == 0) ++complete_;
  detach(i, stripe);
}

std::vector<Assignment> Trees::take_assignments() {
  std::vector<Assignment> taken;
  taken.reserve(told_.size());
  for (Child which : told_) {
    Flow& flow = nodes_[which.node].flows[which.stripe];
    flow.untold = false;
    if (!nodes_[which.node].member || flow.parent == kNobody) continue;
    taken.push_back({nodes_[which.node].peer, which.stripe, nodes_[flow.parent].peer});
  }
  told_.clear();
  assignments_ += taken.size();
  return taken;
}

std::uint32_t Trees::depth(Index i, std::uint32_t stripe, Index without) const {
  std::uint32_t hops = 0;
  for (;; ++hops) {
    if (i == kHeadNode) return hops;
    if (i == without || i == kNobody) return kNobody;
    if (nodes_[i].suspect) return kNobody;
    if (has(i, stripe)) return hops + 1;
    i = nodes_[i].flows[stripe].parent;
  }
}

std::uint32_t Trees::deepest() {
  if (deepest_is_known_) return deepest_;
  deepest_ = 0;
  for (Index i = 1; i < end(); ++i) {
    for (std::uint32_t s = 0; s < stripes() && nodes_[i].member; ++s) {
      std::uint32_t hops = has(i, s) ? 0 : depth(i, s);
      if (hops != kNobody) deepest_ = std::max(deepest_, hops);
    }
  }
  deepest_is_known_ = true;
  return deepest_;
}

bool Trees::has_children_in(Index i, std::uint32_t stripe) const {
  const std::vector<Child>& children = nodes_[i].children;
  return std::any_of(children.begin(), children.end(),
                     [&](Child child) { return child.stripe == stripe; });
}

void Trees::avoid(Index child, Index parent, float until) {
  for (auto& [who, end] : nodes_[child].avoided) {
    if (who != parent) continue;
    end = std::max(end, until);
    return;
  }
  nodes_[child].avoided.emplace_back(parent, until);
}

// Whatever the price; the prices are choose()'s business.
bool Trees::may_feed(Index parent, Index child, std::uint32_t stripe, float now) const {
  if (parent == child || !nodes_[parent].serves()) return false;
  for (const auto& [who, until] : nodes_[child].avoided) {
    if (who == parent && now < until) return false;
  }
  return depth(parent, stripe, child) != kNobody;
}

Index Trees::choose(Index child, std::uint32_t stripe, float now, Index hint) {
  const Node& node = nodes_[child];
  if (node.head_only) return kHeadNode;
  // One child of the head in each stripe: that is how every chunk leaves it once. Where others have
  // the whole stripe it need not leave the head again.
  const bool head_is_free = !node.slow && head_load_[stripe] == 0;
  if (head_is_free && whole_[stripe] == 0) return kHeadNode;
  Index best = choose_free(child, stripe, now, hint, false);
  if (best != kNobody) return best;
  return head_is_free ? kHeadNode : choose_crowded(child, stripe, now);
}

// With `ahead`: only one for which the child need not wait.
Index Trees::choose_free(Index child, std::uint32_t stripe, float now, Index hint, bool ahead) {
  const Node& node = nodes_[child];
  Index best = kNobody;
  std::uint32_t best_price = kNobody;
  auto consider = [&](Index i) {
    if (nodes_[i].load >= stripes() || !may_feed(i, child, stripe, now)) return;
    std::uint32_t price = depth(i, stripe);
    if (nodes_[i].rack != node.rack) price += kOtherRackPenalty;
    if (is_behind(i, child, stripe)) {
      if (ahead) return;
      price += kBehindPenalty;
    }
    if (price >= best_price) return;
    best = i;
    best_price = price;
  };
  if (hint != kNobody && hint != kHeadNode) consider(hint);
  for (std::size_t n = 0; n < std::min(free_.size(), kFreeLooks); ++n) {
    consider(free_[turn_++ % free_.size()]);
  }
  return best;
}

// Nobody has a free place: one gets a child too many. Its children get less each, and so does
// whoever is below them, so one whose children are all leaves is the better choice.
Index Trees::choose_crowded(Index child, std::uint32_t stripe, float now) {
  Index best = kNobody;
  std::uint32_t best_price = kNobody;
  auto consider = [&](Index i) {
    if (!may_feed(i, child, stripe, now)) return;
    const Node& node = nodes_[i];
    bool feeds_many = std::any_of(node.children.begin(), node.children.end(),
                                  [&](Child c) { return has_children_in(c.node, c.stripe); });
    std::uint32_t price = 64 * node.load + (feeds_many ? 32 : 0) +
                          (node.rack != nodes_[child].rack ? kOtherRackPenalty : 0) +
                          std::min(depth(i, stripe), 16u);
    if (is_behind(i, child, stripe)) price += kBehindPenalty;
    if (price >= best_price) return;
    best = i;
    best_price = price;
  };
  std::size_t looks = std::min(servers_.size(), kCrowdedLooks);
  for (std::size_t n = 0; n < looks; ++n) consider(servers_[turn_++ % servers_.size()]);
  if (best == kNobody && looks < servers_.size()) {
    for (Index i : servers_) consider(i);
  }
  if (best == kNobody) return kHeadNode;
  std::uint32_t load = nodes_[best].load;
  return load >= kCrowd * stripes() && nodes_[kHeadNode].load < load ? kHeadNode : best;
}

void Trees::place(Index child, std::uint32_t stripe, float now, Index hint) {
  if (!nodes_[child].member || has(child, stripe)) return;
  if (nodes_[child].flows[stripe].parent != kNobody) ++repairs_;
  detach(child, stripe);
  attach(child, stripe, choose(child, stripe, now, hint), now);
}

void Trees::place_all(std::vector<Child> orphans, float now, Index hint) {
  // Who has a subtree first: it gets the place nearer to the head. Then who has most: it is the one
  // that can feed the others.
  auto rank = [&](Child c) {
    return std::pair(has_children_in(c.node, c.stripe), nodes_[c.node].flows[c.stripe].count);
  };
  std::stable_sort(orphans.begin(), orphans.end(),
                   [&](Child a, Child b) { return rank(a) > rank(b); });
  for (Child orphan : orphans) {
    if (!has(orphan.node, orphan.stripe)) ++repairs_;
    place(orphan.node, orphan.stripe, now, hint);
  }
}

void Trees::evacuate(Index i, float now) {
  std::vector<Child> orphans = nodes_[i].children;
  for (Child child : orphans) detach(child.node, child.stripe);
  place_all(std::move(orphans), now);
  if (nodes_[i].head_only) return;
  for (std::uint32_t s = 0; s < stripes(); ++s) {
    if (nodes_[i].flows[s].parent == kHeadNode) place(i, s, now);
  }
}

void Trees::relieve(float now) {
  auto move = [&](Child child) {
    if (free_.empty() || nodes_[child.node].slow || nodes_[child.node].head_only) return false;
    Index parent = choose_free(child.node, child.stripe, now, kNobody, true);
    if (parent == kNobody) return false;
    ++repairs_;
    detach(child.node, child.stripe);
    attach(child.node, child.stripe, parent, now);
    return true;
  };
  for (std::size_t n = 0; n < servers_.size() && !free_.empty(); ++n) {
    const Node& node = nodes_[servers_[n]];
    if (node.load <= stripes()) continue;
    std::vector<Child> children = node.children;
    // Leaves first: nobody is below them.
    std::stable_partition(children.begin(), children.end(),
                          [&](Child c) { return !has_children_in(c.node, c.stripe); });
    for (Child child : children) {
      if (node.load <= stripes()) break;
      move(child);
    }
  }
  std::vector<Child> children = nodes_[kHeadNode].children;
  for (Child child : children) {
    if (free_.empty()) return;
    if (head_load_[child.stripe] > 1) move(child);
  }
}

void Trees::insert(Index i, float now) {
  nodes_[i].home =
      static_cast<std::uint32_t>(std::min_element(homes_.begin(), homes_.end()) - homes_.begin());
  if (nodes_[i].serves()) ++homes_[nodes_[i].home];
  bool inside = nodes_[i].serves() && splice(i, now);
  for (std::uint32_t s = 0; s < stripes(); ++s) {
    if (!(inside && s == nodes_[i].home)) place(i, s, now);
  }
}

// Takes the place of a leaf of its home stripe and gives it one of its own: so a tree that grows
// node by node stays as flat as one that was built at once. The leaf must not have more than the
// newcomer, or it would wait for it.
bool Trees::splice(Index i, float now) {
  const std::uint32_t home = nodes_[i].home;
  if (has(i, home) || nodes_[i].head_only) return false;
  Index best = kNobody;
  std::uint32_t best_depth = kNobody;
  auto consider = [&](Index leaf) {
    const Node& node = nodes_[leaf];
    if (leaf == i || !node.member || node.slow || node.head_only || has(leaf, home)) return;
    const Flow& flow = node.flows[home];
    if (flow.parent == kNobody || flow.count > nodes_[i].flows[home].count + 2) return;
    if (has_children_in(leaf, home)) return;
    std::uint32_t hops = depth(leaf, home, i);
    if (hops >= best_depth) return;
    best = leaf;
    best_depth = hops;
  };
  // The last ones that came have as little as this one.
  for (Index n = 1; n <= kSpliceLooks && n + 1 < end(); ++n) consider(end() - 1 - n);
  for (std::size_t n = 0; n < std::min<std::size_t>(end() - 1, kSpliceLooks); ++n) {
    consider(static_cast<Index>(1 + turn_++ % (end() - 1)));
  }
  if (best == kNobody) return false;
  Index parent = nodes_[best].flows[home].parent;
  ++repairs_;
  detach(best, home);
  attach(i, home, parent, now);
  attach(best, home, i, now);
  return true;
}

}  // namespace dsi::distribute

#include "orchestrator/distribute/scheduler.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace dsi::distribute {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Nodes that do what they are told, as seen from outside: who follows whom, and who has how much.
class Nodes {
 public:
  explicit Nodes(SwarmShape shape) : shape_(shape), scheduler_(shape) {}

  Scheduler& scheduler() { return scheduler_; }
  Time now() const { return Time(now_); }
  std::uint32_t chunks_in(std::uint32_t stripe) const {
    return (shape_.chunks + shape_.stripes - 1 - stripe) / shape_.stripes;
  }
  bool has(PeerId peer, std::uint32_t stripe) const {
    return counts_.at(peer)[stripe] >= chunks_in(stripe);
  }
  bool is_complete(PeerId peer) const {
    for (std::uint32_t s = 0; s < shape_.stripes; ++s) {
      if (!has(peer, s)) return false;
    }
    return true;
  }

  void join(Newcomer newcomer) {
    newcomer.counts.resize(shape_.stripes);
    counts_[newcomer.peer] = newcomer.counts;
    parents_[newcomer.peer].assign(shape_.stripes, std::nullopt);
    scheduler_.join(newcomer, now());
    obey();
  }
  void join_all(PeerId peers) {
    for (PeerId peer = 0; peer < peers; ++peer) join({peer, true, {}, ""});
  }
  void start() {
    scheduler_.start(now());
    obey();
  }
  void leave(PeerId peer) {
    counts_.erase(peer);
    parents_.erase(peer);
    scheduler_.leave(peer, now());
    obey();
  }
  void fault(PeerId child, std::uint32_t stripe, Fault fault) {
    auto parent = parents_.at(child)[stripe];
    if (parent) scheduler_.fault(child, *parent, stripe, fault, now());
    obey();
  }
  void tick(double seconds = 0.1) {
    now_ += seconds;
    scheduler_.tick(now());
    obey();
  }
  // One more chunk of the stripe if the parent has it.
  bool advance(PeerId peer, std::uint32_t stripe) {
    auto parent = parents_.at(peer)[stripe];
    std::uint32_t& count = counts_.at(peer)[stripe];
    if (!parent || count >= chunks_in(stripe)) return false;
    if (*parent != kHead && counts_.at(*parent)[stripe] <= count) return false;
    ++count;
    return true;
  }
  void report(PeerId peer) {
    scheduler_.have(peer, counts_.at(peer), now());
    obey();
  }
  // Every node gets one chunk of every stripe whose parent has one for it, but those that stand.
  void round(const std::set<PeerId>& standing = {}) {
    for (auto& [peer, counts] : counts_) {
      if (standing.count(peer) != 0) continue;
      for (std::uint32_t s = 0; s < shape_.stripes; ++s) advance(peer, s);
    }
    for (PeerId peer : peers()) {
      if (standing.count(peer) == 0) report(peer);
    }
    tick();
  }

  std::vector<PeerId> peers() const {
    std::vector<PeerId> peers;
    for (const auto& [peer, counts] : counts_) peers.push_back(peer);
    return peers;
  }
  std::optional<PeerId> parent(PeerId child, std::uint32_t stripe) const {
    return parents_.at(child)[stripe];
  }
  // Children that still need something, over all stripes.
  std::size_t children(PeerId parent) const { return children_of().count(parent); }
  std::multimap<PeerId, std::pair<std::uint32_t, PeerId>> children_of() const {
    std::multimap<PeerId, std::pair<std::uint32_t, PeerId>> children;
    for (const auto& [child, parents] : parents_) {
      for (std::uint32_t s = 0; s < shape_.stripes; ++s) {
        if (parents[s] && !has(child, s)) children.emplace(*parents[s], std::pair(s, child));
      }
    }
    return children;
  }
  // Hops up to the head or to who has the whole stripe; fails if there is no such way.
  std::size_t depth(PeerId peer, std::uint32_t stripe) const {
    std::size_t hops = 0;
    for (PeerId at = peer; at != kHead && counts_.count(at) != 0 && !has(at, stripe); ++hops) {
      auto up = parents_.at(at)[stripe];
      bool ends = !up || (*up != kHead && counts_.count(*up) == 0) || hops > counts_.size();
      EXPECT_FALSE(ends) << "node " << peer << " stripe " << stripe << " at " << at;
      if (ends) return hops;
      at = *up;
    }
    return hops;
  }
  std::size_t deepest() const {
    std::size_t most = 0;
    for (const auto& [peer, counts] : counts_) {
      for (std::uint32_t s = 0; s < shape_.stripes; ++s) {
        if (!has(peer, s)) most = std::max(most, depth(peer, s));
      }
    }
    return most;
  }
  std::vector<Remark>& remarks() { return remarks_; }
  std::size_t assignments() const { return assignments_; }

 private:
  void obey() {
    for (const Assignment& a : scheduler_.take_assignments()) {
      ++assignments_;
      ASSERT_EQ(counts_.count(a.child), 1u) << "an assignment for who is not there";
      ASSERT_NE(a.child, a.parent);
      parents_.at(a.child)[a.stripe] = a.parent;
    }
    for (Remark& remark : scheduler_.take_remarks()) remarks_.push_back(std::move(remark));
  }

  SwarmShape shape_;
  Scheduler scheduler_;
  double now_ = 1e6;  // Any fixed moment will do.
  std::map<PeerId, std::vector<std::uint32_t>> counts_;
  std::map<PeerId, std::vector<std::optional<PeerId>>> parents_;
  std::vector<Remark> remarks_;
  std::size_t assignments_ = 0;
};

TEST(Scheduler, Gives_every_node_as_many_children_as_it_has_parents_and_the_head_one_a_stripe) {
  for (PeerId n : {1u, 2u, 3u, 5u, 8u, 31u, 64u, 1000u}) {
    SwarmShape shape{256, 1000, choose_stripes(n, 256)};
    Nodes nodes(shape);
    nodes.join_all(n);
    nodes.start();
    auto children = nodes.children_of();
    EXPECT_EQ(children.size(), n * shape.stripes) << n;
    EXPECT_EQ(children.count(kHead), shape.stripes) << n;
    for (PeerId peer = 0; peer < n; ++peer) EXPECT_LE(children.count(peer), shape.stripes) << n;
    nodes.deepest();
  }
}

TEST(Scheduler, Keeps_the_trees_flat) {
  Nodes nodes({256, 1000, 4});
  nodes.join_all(10'000);
  nodes.start();
  EXPECT_LE(nodes.deepest(), 9u);  // log4(10,000) is 6.6.
  EXPECT_EQ(nodes.scheduler().numbers().depth, nodes.deepest());
}

TEST(Scheduler, Crosses_between_racks_seldom) {
  Nodes nodes({256, 1000, 4});
  for (PeerId peer = 0; peer < 1000; ++peer) {
    nodes.join({peer, true, {}, fmt::format("rack{}", peer % 25)});
  }
  nodes.start();
  std::size_t crossings = 0;
  for (const auto& [parent, child] : nodes.children_of()) {
    if (parent != kHead && parent % 25 != child.second % 25) ++crossings;
  }
  EXPECT_LE(crossings, 25u * 4 * 4);  // Of 4,000: four for each rack and stripe.
  EXPECT_LE(nodes.deepest(), 9u);
}

TEST(Scheduler, Makes_a_node_that_nobody_can_connect_to_a_leaf) {
  Nodes nodes({64, 1000, 4});
  for (PeerId peer = 0; peer < 40; ++peer) nodes.join({peer, peer % 10 != 3, {}, ""});
  nodes.start();
  for (PeerId peer = 3; peer < 40; peer += 10) EXPECT_EQ(nodes.children(peer), 0u);
  nodes.deepest();
  EXPECT_EQ(nodes.children(kHead), 4u);
}

TEST(Scheduler, Feeds_one_by_one_where_no_node_can_be_connected_to) {
  Nodes nodes({64, 1000, 4});
  for (PeerId peer = 0; peer < 20; ++peer) nodes.join({peer, false, {}, ""});
  nodes.start();
  EXPECT_EQ(nodes.children(kHead), 80u);
}

TEST(Scheduler, Falls_back_to_the_head_within_a_few_rounds_where_all_ports_are_closed) {
  Nodes nodes({64, 1000, 4});
  nodes.join_all(64);
  nodes.start();
  for (int round = 0; round < 2; ++round) {
    for (PeerId peer : nodes.peers()) {
      for (std::uint32_t s = 0; s < 4; ++s) {
        if (nodes.parent(peer, s) != kHead) nodes.fault(peer, s, Fault::kUnreachable);
      }
    }
    nodes.tick();
  }
  EXPECT_EQ(nodes.children(kHead), 64u * 4);
  EXPECT_LE(nodes.assignments(), 64u * 4 * 5);
}

TEST(Scheduler, Feeds_a_node_that_cannot_connect_to_others_from_the_head_and_blames_nobody_else) {
  Nodes nodes({64, 1000, 4});
  nodes.join_all(64);
  nodes.start();
  for (int round = 0; round < 8; ++round) {
    for (std::uint32_t s = 0; s < 4; ++s) {
      if (nodes.parent(7, s) != kHead) nodes.fault(7, s, Fault::kUnreachable);
    }
  }
  for (std::uint32_t s = 0; s < 4; ++s) EXPECT_EQ(nodes.parent(7, s), kHead);
  ASSERT_EQ(nodes.remarks().size(), 1u);
  EXPECT_EQ(nodes.remarks()[0].peer, 7u);
  EXPECT_THAT(nodes.remarks()[0].text, HasSubstr("could not connect"));
}

TEST(Scheduler, Asks_one_that_sent_a_bad_chunk_for_nothing_more_and_names_it) {
  Nodes nodes({64, 1000, 4});
  nodes.join_all(32);
  nodes.start();
  PeerId child = 0;
  while (nodes.parent(child, 0) == kHead) ++child;
  PeerId liar = *nodes.parent(child, 0);
  nodes.fault(child, 0, Fault::kCorrupt);
  EXPECT_EQ(nodes.children(liar), 0u);
  ASSERT_EQ(nodes.remarks().size(), 1u);
  EXPECT_EQ(nodes.remarks()[0].peer, liar);
  for (int round = 0; round < 40; ++round) nodes.round();
  EXPECT_TRUE(nodes.scheduler().complete());
}

TEST(Scheduler, Believes_nobody_who_calls_everybody_corrupt) {
  Nodes nodes({64, 1000, 4});
  nodes.join_all(32);
  nodes.start();
  for (int n = 0; n < 10; ++n) nodes.fault(5, static_cast<std::uint32_t>(n) % 4, Fault::kCorrupt);
  std::set<PeerId> named;
  for (const Remark& remark : nodes.remarks()) named.insert(remark.peer);
  EXPECT_LE(named.size(), 3u);
  EXPECT_THAT(named, Contains(5u));
  EXPECT_EQ(nodes.children(5), 0u);
}

TEST(Scheduler, Gives_the_children_of_who_left_other_parents_at_once) {
  Nodes nodes({64, 1000, 4});
  nodes.join_all(32);
  nodes.start();
  while (nodes.peers().size() > 1) {
    nodes.leave(nodes.peers().front());
    nodes.deepest();
    EXPECT_EQ(nodes.children(kHead), 4u) << nodes.peers().size();
  }
}

TEST(Scheduler, Makes_a_node_that_lags_in_everything_a_leaf) {
  Nodes nodes({400, 1000, 4});
  nodes.join_all(32);
  nodes.start();
  PeerId inside = 0;
  while (nodes.children(inside) < 4 || nodes.parent(inside, 0) == kHead) ++inside;
  for (int round = 0; round < 30; ++round) nodes.round();
  EXPECT_EQ(nodes.children(inside), 4u);
  for (int round = 0; round < 12; ++round) nodes.round({inside});
  EXPECT_EQ(nodes.children(inside), 0u);
  EXPECT_EQ(nodes.scheduler().numbers().slow, 1u);
  ASSERT_EQ(nodes.remarks().size(), 1u);
  EXPECT_EQ(nodes.remarks()[0].peer, inside);
  EXPECT_LE(nodes.scheduler().numbers().repairs, 9u);  // Nobody but its children was moved.
}

TEST(Scheduler, Lets_a_node_that_recovered_serve_again) {
  Nodes nodes({2000, 1000, 4});
  nodes.join_all(32);
  nodes.start();
  for (int round = 0; round < 30; ++round) nodes.round();
  for (int round = 0; round < 12; ++round) nodes.round({9});
  EXPECT_EQ(nodes.scheduler().numbers().slow, 1u);
  for (int round = 0; round < 30; ++round) nodes.round();
  EXPECT_EQ(nodes.scheduler().numbers().slow, 0u);
}

TEST(Scheduler, Moves_nobody_when_the_whole_swarm_stands_still) {
  Nodes nodes({400, 1000, 4});
  nodes.join_all(64);
  nodes.start();
  for (int round = 0; round < 30; ++round) nodes.round();
  std::vector<PeerId> all = nodes.peers();
  for (int round = 0; round < 100; ++round) nodes.round({all.begin(), all.end()});
  for (int round = 0; round < 100; ++round) nodes.round();
  EXPECT_TRUE(nodes.scheduler().complete());
  EXPECT_EQ(nodes.scheduler().numbers().repairs, 0u);
}

TEST(Scheduler, Moves_the_one_child_that_does_not_get_on_with_its_parent) {
  Nodes nodes({400, 1000, 4});
  nodes.join_all(32);
  nodes.start();
  PeerId child = 0;
  while (nodes.parent(child, 2) == kHead) ++child;
  PeerId parent = *nodes.parent(child, 2);
  for (int round = 0; round < 60 && nodes.parent(child, 2) == parent; ++round) {
    for (PeerId peer : nodes.peers()) {
      for (std::uint32_t s = 0; s < 4; ++s) {
        if (!(peer == child && s == 2)) nodes.advance(peer, s);
      }
    }
    for (PeerId peer : nodes.peers()) nodes.report(peer);
    nodes.tick();
  }
  EXPECT_NE(nodes.parent(child, 2), parent);
  EXPECT_EQ(nodes.scheduler().numbers().slow, 0u);
  EXPECT_EQ(nodes.scheduler().numbers().repairs, 1u);
}

TEST(Scheduler, Relieves_a_parent_that_is_slow_in_sending_of_all_its_children) {
  Nodes nodes({400, 1000, 4});
  nodes.join_all(32);
  nodes.start();
  PeerId parent = 0;
  while (nodes.children(parent) < 4) ++parent;
  for (int round = 0; round < 60 && nodes.children(parent) > 0; ++round) {
    for (PeerId peer : nodes.peers()) {
      for (std::uint32_t s = 0; s < 4; ++s) {
        if (nodes.parent(peer, s) != parent || round % 10 == 0) nodes.advance(peer, s);
      }
    }
    for (PeerId peer : nodes.peers()) nodes.report(peer);
    nodes.tick();
  }
  EXPECT_EQ(nodes.children(parent), 0u);
  EXPECT_EQ(nodes.scheduler().numbers().slow, 1u);
}

TEST(Scheduler, Takes_in_who_comes_late_without_growing_deep) {
  Nodes nodes({256, 1000, 4});
  nodes.join_all(16);
  nodes.start();
  for (PeerId peer = 16; peer < 1016; ++peer) nodes.join({peer, true, {}, ""});
  nodes.tick();
  EXPECT_LE(nodes.deepest(), 24u);
  EXPECT_EQ(nodes.children(kHead), 4u);
  for (PeerId peer : nodes.peers()) EXPECT_LE(nodes.children(peer), 5u);
}

TEST(Scheduler, Does_not_make_who_has_much_wait_for_who_comes_late) {
  Nodes nodes({256, 1000, 4});
  nodes.join_all(64);
  nodes.start();
  for (int round = 0; round < 30; ++round) nodes.round();
  for (PeerId peer = 64; peer < 96; ++peer) nodes.join({peer, true, {}, ""});
  nodes.tick();
  for (PeerId peer = 0; peer < 64; ++peer) {
    for (std::uint32_t s = 0; s < 4; ++s) {
      auto parent = nodes.parent(peer, s);
      EXPECT_TRUE(*parent == kHead || *parent < 64u);
    }
  }
  for (int round = 0; round < 120; ++round) nodes.round();
  EXPECT_TRUE(nodes.scheduler().complete());
}

TEST(Scheduler, Lets_who_has_everything_already_feed_the_others) {
  Nodes nodes({64, 1000, 4});
  nodes.join({0, true, {16, 16, 16, 16}, ""});
  for (PeerId peer = 1; peer < 8; ++peer) nodes.join({peer, true, {}, ""});
  nodes.start();
  EXPECT_GT(nodes.children(0), 0u);
  EXPECT_FALSE(nodes.scheduler().is_free(0));
  for (int round = 0; round < 40; ++round) nodes.round();
  EXPECT_TRUE(nodes.scheduler().complete());
  for (PeerId peer : nodes.peers()) EXPECT_TRUE(nodes.scheduler().is_free(peer));
  EXPECT_EQ(nodes.scheduler().numbers().complete, 8u);
}

TEST(Scheduler, Has_nothing_to_say_where_there_is_nothing_to_send) {
  Nodes nodes({0, 1000, 1});
  nodes.join_all(8);
  nodes.start();
  EXPECT_EQ(nodes.assignments(), 0u);
  EXPECT_TRUE(nodes.scheduler().complete());
}

TEST(Scheduler, Ignores_what_is_said_by_and_about_strangers) {
  Scheduler scheduler({64, 1000, 2});
  scheduler.join({1, true, {}, ""}, Time(0));
  scheduler.start(Time(0));
  scheduler.take_assignments();
  scheduler.have(9, {1, 1}, Time(1));
  scheduler.have(1, {}, Time(1));
  scheduler.fault(9, 1, 0, Fault::kClosed, Time(1));
  scheduler.fault(1, 9, 0, Fault::kCorrupt, Time(1));
  scheduler.fault(1, kHead, 7, Fault::kSilent, Time(1));
  scheduler.leave(9, Time(1));
  scheduler.tick(Time(0.5));
  EXPECT_THAT(scheduler.take_assignments(), IsEmpty());
  scheduler.fault(1, kHead, 1, Fault::kClosed, Time(1));
  EXPECT_THAT(scheduler.take_assignments(), ElementsAre(Assignment{1, 1, kHead}));
}

// Whatever happens in whatever order: every node has a way to the head in every stripe, and once
// the faults end everybody gets everything.
class Any_events : public testing::TestWithParam<unsigned> {};

TEST_P(Any_events, Leave_every_node_with_a_way_to_the_head) {
  std::mt19937 random(GetParam());
  auto below = [&](std::size_t n) { return static_cast<PeerId>(random() % n); };
  const PeerId first = 2 + below(60);
  SwarmShape shape{20 + below(200), 1000, 1 + below(5)};
  Nodes nodes(shape);
  auto newcomer = [&](PeerId peer) {
    Newcomer n{peer, below(10) != 0, {}, below(2) == 0 ? "" : fmt::format("r{}", below(4))};
    n.counts.resize(shape.stripes);
    if (below(8) == 0) {
      for (std::uint32_t s = 0; s < shape.stripes; ++s) n.counts[s] = below(nodes.chunks_in(s) + 1);
    }
    return n;
  };
  for (PeerId peer = 0; peer < first; ++peer) nodes.join(newcomer(peer));
  nodes.start();
  PeerId next = first;
  for (int event = 0; event < 600; ++event) {
    std::vector<PeerId> peers = nodes.peers();
    if (peers.empty()) break;
    PeerId peer = peers[below(peers.size())];
    std::uint32_t stripe = below(shape.stripes);
    switch (below(20)) {
      case 0:
        nodes.join(newcomer(next++));
        break;
      case 1:
        if (below(3) == 0) nodes.leave(peer);
        break;
      case 2:
        nodes.fault(peer, stripe, Fault::kUnreachable);
        break;
      case 3:
        nodes.fault(peer, stripe, Fault::kClosed);
        break;
      case 4:
        nodes.fault(peer, stripe, Fault::kSilent);
        break;
      case 5:
        if (below(8) == 0) nodes.fault(peer, stripe, Fault::kCorrupt);
        break;
      case 6:
        nodes.round({peer, peers[below(peers.size())]});
        break;
      case 7:
        nodes.tick();
        break;
      default:
        while (below(4) != 0) nodes.advance(peer, stripe);
        nodes.report(peer);
    }
    nodes.deepest();
    if (HasFailure()) FAIL() << "seed " << GetParam() << " event " << event;
  }
  for (std::uint32_t round = 0; round < shape.chunks + 200; ++round) nodes.round();
  EXPECT_TRUE(nodes.scheduler().complete());
  for (PeerId peer : nodes.peers()) {
    EXPECT_TRUE(nodes.is_complete(peer)) << peer;
    EXPECT_TRUE(nodes.scheduler().is_free(peer)) << peer;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, Any_events, testing::Range(0u, 60u));

}  // namespace
}  // namespace dsi::distribute

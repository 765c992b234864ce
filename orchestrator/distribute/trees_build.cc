// The first trees, made knowing everybody.
//
// In each stripe the nodes that are at home there form the inside of the tree, the others its
// leaves. Between racks bytes are dear: so one node of each rack, its entry, takes the stripe from
// another rack, and the rest of the rack hangs below it. The entries form the upper part of the
// tree. An entry keeps one of its places for its own rack and gives the others to entries of other
// racks; the leaves that therefore find no place in their own rack are fed by racks that have one
// left.

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>

#include "orchestrator/distribute/trees.h"

namespace dsi::distribute {

namespace {

struct Source {
  Index node = kNobody;
  std::uint32_t places = 0;  // Left.
  std::uint32_t depth = 0;
};

struct Rack {
  std::vector<Index> inside;
  std::vector<Index> leaves;
  std::deque<Source> sources;  // The nearest to the head first.
};

}  // namespace

void Trees::build(float now) {
  std::vector<Index> order;
  for (Index i = 1; i < end(); ++i) {
    if (nodes_[i].member) order.push_back(i);
  }
  // Who has much already is a good parent, so it comes first.
  auto chunks = [&](Index i) {
    const std::vector<Flow>& flows = nodes_[i].flows;
    return std::accumulate(flows.begin(), flows.end(), std::uint64_t{0},
                           [](std::uint64_t sum, const Flow& flow) { return sum + flow.count; });
  };
  std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) {
    if (nodes_[a].rack != nodes_[b].rack) return nodes_[a].rack < nodes_[b].rack;
    return chunks(a) > chunks(b);
  });
  std::uint32_t next_home = 0;
  for (Index i : order) {
    nodes_[i].home = next_home;
    if (!nodes_[i].serves()) continue;
    ++homes_[next_home];
    next_home = (next_home + 1) % stripes();
  }
  std::vector<Child> left_over;
  for (std::uint32_t s = 0; s < stripes(); ++s) build_stripe(s, order, now, left_over);
  for (Child child : left_over) place(child.node, child.stripe, now);
}

void Trees::build_stripe(std::uint32_t stripe, const std::vector<Index>& order, float now,
                         std::vector<Child>& left_over) {
  std::deque<Source> top = {{kHeadNode, 1, 0}};
  std::map<std::uint32_t, Rack> by_number;
  for (Index i : order) {
    const Node& node = nodes_[i];
    const bool at_home = node.serves() && node.home == stripe;
    // With one place a node there is nothing to branch: one chain through all racks.
    Rack& rack = by_number[stripes() == 1 ? 0 : node.rack];
    if (!has(i, stripe)) {
      (at_home ? rack.inside : rack.leaves).push_back(i);
    } else if (at_home) {
      top.push_back({i, stripes(), 0});
    }
  }
  auto feed = [&](Index child, std::deque<Source>& sources) {
    while (!sources.empty() && sources.front().places == 0) sources.pop_front();
    if (sources.empty()) return kNobody;
    --sources.front().places;
    attach(child, stripe, sources.front().node, now);
    return sources.front().depth + 1;
  };

  std::vector<Rack*> racks;
  for (auto& [number, rack] : by_number) racks.push_back(&rack);
  std::stable_sort(racks.begin(), racks.end(), [](const Rack* a, const Rack* b) {
    return a->inside.size() > b->inside.size();
  });
  std::vector<Index> astray;  // Have no place in their own rack.
  for (Rack* rack : racks) {
    if (rack->inside.empty()) continue;
    Index entry = rack->inside.front();
    std::uint32_t depth = feed(entry, top);
    if (depth == kNobody) {
      astray.insert(astray.end(), rack->inside.begin(), rack->inside.end());
      rack->inside.clear();
      continue;
    }
    const bool others = rack->inside.size() + rack->leaves.size() > 1;
    std::uint32_t own = racks.size() == 1 ? stripes() : others ? 1 : 0;
    rack->sources.push_back({entry, own, depth});
    top.push_back({entry, stripes() - own, depth});
  }
  for (Rack* rack : racks) {
    for (std::size_t n = 1; n < rack->inside.size(); ++n) {
      Index i = rack->inside[n];
      std::uint32_t depth = feed(i, rack->sources);
      if (depth == kNobody) {
        astray.push_back(i);
      } else {
        rack->sources.push_back({i, stripes(), depth});
      }
    }
    for (Index i : rack->leaves) {
      if (feed(i, rack->sources) == kNobody) astray.push_back(i);
    }
  }

  for (Rack* rack : racks) top.insert(top.end(), rack->sources.begin(), rack->sources.end());
  std::stable_sort(top.begin(), top.end(),
                   [](const Source& a, const Source& b) { return a.depth < b.depth; });
  for (Index i : astray) {
    if (feed(i, top) == kNobody) left_over.push_back({stripe, i});
  }
}

}  // namespace dsi::distribute

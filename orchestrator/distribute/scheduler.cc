// Judges who is slow, who cannot be reached and who is gone; trees.cc finds the places.
//
// Lag is judged by debt. At each tick a flow whose parent has more than the child is charged with
// what the swarm's pace would have brought, less a tolerance, and credited with what came. So an
// uneven flow that is on the whole as fast as the others owes nothing, one that stands still is
// found after kPatience, one at a tenth of the rate little later; and a child whose parent has
// nothing to give owes nothing, however long it waits: only the first in a row of waiting nodes is
// looked at. The pace is the median over all nodes, so where the whole swarm is held up (a busy
// machine, a full uplink) nobody is to blame.
//
// Whose fault a debt is, follows from who else has one:
//   the child in all its stripes      the child is slow, or dead: it becomes a leaf
//   most children of the parent       the parent is slow in sending: it becomes a leaf
//   otherwise                         that one connection: another parent for that one stripe

#include "orchestrator/distribute/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "orchestrator/distribute/trees.h"

namespace dsi::distribute {

namespace {

constexpr float kPatience = 0.35f;    // Seconds behind the pace; reports come every 0.2 s or so.
constexpr float kPatienceChunks = 3;  // The least, for where a chunk takes long.
constexpr float kTolerance = 0.75f;   // Of the pace; who keeps to that is never slow.
constexpr float kGrace = 0.25f;       // For a new connection.
constexpr float kWindow = 0.4f;       // Over which the pace is measured, or longer, until
constexpr std::uint32_t kWindowChunks = 4;  // a node has got so many.
constexpr float kWellFor = 1.5f;            // A slow node that keeps the pace so long serves again,
constexpr int kRelapses = 2;                // but so often only.
constexpr float kAvoidAfterFault = 5;       // Seconds
constexpr float kForever = 1e30f;
constexpr float kTogether = 2;      // Complaints within so many seconds are about one event.
constexpr double kMostSlow = 0.45;  // Of the members: with fewer to serve nothing is won.
constexpr std::size_t kStrikes = 3;
constexpr std::size_t kAccusers = 3;  // Who calls so many peers corrupt is so itself.

// What a node did; what Trees need not know.
struct Conduct {
  std::uint64_t mark = 0;  // Chunks when the window began.
  float well_since = 0;    // Only for a slow one.
  int relapses = 0;
  bool for_good = false;               // Slow in sending: that it receives well proves nothing.
  bool has_served = false;             // Something came from it to another node.
  bool has_connected = false;          // Something came to it from another node.
  std::vector<Index> unreachable_for;  // Children
  std::vector<Index> cannot_reach;     // Parents
  std::vector<Index> calls_corrupt;    // Parents
  std::vector<std::pair<Index, float>> closed_for;  // Children, and when.
  std::vector<Index> strikes;                       // Children that were taken from it one by one.
};

bool add_once(std::vector<Index>& list, Index i) {
  if (std::find(list.begin(), list.end(), i) != list.end()) return false;
  list.push_back(i);
  return true;
}

}  // namespace

struct Scheduler::State {
  explicit State(const SwarmShape& shape) : trees(shape) {}

  float seconds(Time now) {
    if (!origin) origin = now;
    return static_cast<float>((now - *origin).count());
  }
  std::uint64_t chunks_of(Index i) const {
    std::uint64_t sum = 0;
    for (const Flow& flow : trees.node(i).flows) sum += flow.count;
    return sum;
  }
  Conduct& conduct(Index i) {
    if (conducts.size() < trees.end()) conducts.resize(trees.end());
    return conducts[i];
  }
  void remark(Index i, std::string text) {
    remarks.push_back({trees.node(i).peer, std::move(text)});
  }

  void unreachable(Index child, Index parent, std::uint32_t stripe, float now);
  void closed(Index child, Index parent, std::uint32_t stripe, float now);
  void silent(Index child, Index parent, std::uint32_t stripe, float now);
  void corrupt(Index child, Index parent, std::uint32_t stripe, float now);

  bool make_slow(Index i, const char* why, float now);
  void measure_pace(float now);
  bool is_fed(Index i, std::uint32_t stripe) const;
  void charge(float elapsed);
  void judge(float now);
  bool judge_child(Index i, float now);
  void judge_flow(Index i, std::uint32_t stripe, float now);
  void acquit(float now);

  Trees trees;
  std::vector<Conduct> conducts;
  std::vector<Remark> remarks;
  std::optional<Time> origin;
  bool started = false;
  float last_tick = 0;
  float window_began = 0;
  float pace = 0;          // Chunks a second in one stripe; 0: not known yet.
  float average_pace = 0;  // Over several windows.
  float limit = 0;         // Of a debt, in chunks.
  std::size_t slow = 0;    // Members
};

Scheduler::Scheduler(SwarmShape shape) : state_(std::make_unique<State>(shape)) {}
Scheduler::~Scheduler() = default;

void Scheduler::join(const Newcomer& newcomer, Time at) {
  State& state = *state_;
  if (state.trees.find(newcomer.peer) != kNobody) return;
  float now = state.seconds(at);
  Index i = state.trees.add(newcomer);
  state.conduct(i).mark = state.chunks_of(i);
  if (state.started) state.trees.insert(i, now);
}

void Scheduler::start(Time at) {
  State& state = *state_;
  if (state.started) return;
  float now = state.seconds(at);
  state.started = true;
  state.last_tick = state.window_began = now;
  state.trees.build(now);
}

void Scheduler::leave(PeerId peer, Time at) {
  State& state = *state_;
  Index i = state.trees.find(peer);
  if (i == kNobody) return;
  if (state.trees.node(i).slow) --state.slow;
  std::vector<Child> orphans = state.trees.remove(i);
  state.trees.place_all(std::move(orphans), state.seconds(at));
}

void Scheduler::have(PeerId peer, const std::vector<std::uint32_t>& counts, Time at) {
  State& state = *state_;
  Index i = state.trees.find(peer);
  if (i == kNobody) return;
  float now = state.seconds(at);
  state.trees.node(i).suspect = false;
  for (std::uint32_t s = 0; s < state.trees.stripes() && s < counts.size(); ++s) {
    const Flow flow = state.trees.node(i).flows[s];
    if (counts[s] <= flow.count) continue;
    // Right after a change it may still be the old parent's.
    if (flow.parent != kNobody && flow.parent != kHeadNode && now - flow.since > kGrace) {
      state.conduct(i).has_connected = true;
      state.conduct(flow.parent).has_served = true;
    }
    state.trees.count(i, s, counts[s]);
  }
}

void Scheduler::fault(PeerId child_peer, PeerId parent_peer, std::uint32_t stripe, Fault fault,
                      Time at) {
  State& state = *state_;
  Index child = state.trees.find(child_peer);
  Index parent = parent_peer == kHead ? kHeadNode : state.trees.find(parent_peer);
  if (!state.started || child == kNobody || stripe >= state.trees.stripes()) return;
  float now = state.seconds(at);
  const bool current = parent != kNobody && state.trees.node(child).flows[stripe].parent == parent;
  if (parent == kHeadNode) {
    // There is nobody else to ask about the head; the child starts anew with it.
    if (current) state.trees.tell_again(child, stripe);
    return;
  }
  // What is said about a parent that is not the child's any more is old, but a lie stays a lie.
  if (parent == kNobody || parent == child || (!current && fault != Fault::kCorrupt)) return;
  switch (fault) {
    case Fault::kUnreachable:
      return state.unreachable(child, parent, stripe, now);
    case Fault::kClosed:
      return state.closed(child, parent, stripe, now);
    case Fault::kSilent:
      return state.silent(child, parent, stripe, now);
    case Fault::kCorrupt:
      return state.corrupt(child, parent, stripe, now);
  }
}

void Scheduler::State::unreachable(Index child, Index parent, std::uint32_t stripe, float now) {
  trees.avoid(child, parent, kForever);
  add_once(conduct(child).cannot_reach, parent);
  if (!trees.node(child).head_only) add_once(conduct(parent).unreachable_for, child);

  // Nobody gets through to the parent?
  std::size_t complaints = conduct(parent).unreachable_for.size();
  if (complaints >= (conduct(parent).has_served ? 4 : 2) && trees.node(parent).can_serve) {
    trees.node(parent).can_serve = false;
    trees.update(parent);
    remark(parent, "could not be reached by other hosts, so it served none");
    trees.evacuate(parent, now);
  }
  // The child gets through to nobody? As many parents as it has stripes were tried at once, so as
  // many failures are one attempt.
  std::size_t failures = conduct(child).cannot_reach.size();
  std::size_t enough = std::max<std::size_t>(3, trees.stripes());
  if (conduct(child).has_connected) enough *= 2;
  if (failures >= enough && !trees.node(child).head_only) {
    trees.node(child).head_only = true;
    remark(child, "could not connect to other hosts, so the head fed it");
    for (std::uint32_t s = 0; s < trees.stripes(); ++s) {
      if (trees.node(child).flows[s].parent != kHeadNode) trees.place(child, s, now);
    }
  } else if (trees.node(child).flows[stripe].parent == parent) {
    trees.place(child, stripe, now);
  }
}

void Scheduler::State::closed(Index child, Index parent, std::uint32_t stripe, float now) {
  trees.avoid(child, parent, now + kAvoidAfterFault);
  auto& complaints = conduct(parent).closed_for;
  std::erase_if(complaints,
                [&](const auto& c) { return c.first == child || c.second < now - kTogether; });
  complaints.emplace_back(child, now);
  trees.node(parent).suspect = true;
  // One broken connection is one; two at once are a program that ended or a host that is gone.
  if (complaints.size() >= 2) make_slow(parent, "broke its connections to other hosts", now);
  if (trees.node(child).flows[stripe].parent == parent) trees.place(child, stripe, now);
}

void Scheduler::State::silent(Index child, Index parent, std::uint32_t stripe, float now) {
  // A parent that has nothing to give yet is not at fault; the one it waits for is. The child hears
  // that all is as it should be.
  if (!is_fed(child, stripe) && !trees.node(parent).slow) {
    return trees.tell_again(child, stripe);
  }
  trees.avoid(child, parent, now + kAvoidAfterFault);
  trees.place(child, stripe, now);
}

void Scheduler::State::corrupt(Index child, Index parent, std::uint32_t stripe, float now) {
  add_once(conduct(child).calls_corrupt, parent);
  trees.avoid(child, parent, kForever);
  if (conduct(child).calls_corrupt.size() == kAccusers) {
    // Its own memory is the likelier cause.
    trees.node(child).head_only = trees.node(child).corrupt = true;
    trees.update(child);
    remark(child, "found the chunks of several hosts damaged, so it is trusted no more");
    trees.evacuate(child, now);
    for (std::uint32_t s = 0; s < trees.stripes(); ++s) {
      if (trees.node(child).flows[s].parent != kHeadNode) trees.place(child, s, now);
    }
    return;
  }
  if (trees.node(child).corrupt) {
    if (trees.node(child).flows[stripe].parent == parent) trees.place(child, stripe, now);
    return;
  }
  if (!trees.node(parent).corrupt) {
    trees.node(parent).corrupt = true;
    trees.update(parent);
    remark(parent, "sent a chunk that was not what it should be");
    trees.evacuate(parent, now);
  }
  if (trees.node(child).flows[stripe].parent == parent) trees.place(child, stripe, now);
}

// False if too many are already.
bool Scheduler::State::make_slow(Index i, const char* why, float now) {
  if (trees.node(i).slow) return true;
  if (slow + 1 > std::max<double>(1, kMostSlow * static_cast<double>(trees.members()))) {
    return false;
  }
  ++slow;
  trees.set_slow(i, true);
  for (Flow& flow : trees.node(i).flows) flow.debt = 0;
  conduct(i).well_since = now;
  if (++conduct(i).relapses == 1) remark(i, why);
  trees.evacuate(i, now);
  return true;
}

void Scheduler::tick(Time at) {
  State& state = *state_;
  if (!state.started) return;
  float now = state.seconds(at);
  float elapsed = now - state.last_tick;
  if (elapsed <= 0) return;
  state.last_tick = now;
  state.measure_pace(now);
  state.trees.relieve(now);
  state.charge(std::min(elapsed, kPatience / 2));  // A head that slept knows nothing of that time.
  if (state.pace <= 0) return;
  state.acquit(now);
  state.judge(now);
}

void Scheduler::State::measure_pace(float now) {
  float window = now - window_began;
  if (window < kWindow) return;
  std::vector<float> rates;
  std::vector<std::uint64_t> gains;
  for (Index i = 1; i < trees.end(); ++i) {
    const Node& node = trees.node(i);
    if (!node.member || node.slow) continue;
    auto unfinished = std::count_if(node.flows.begin(), node.flows.end(),
                                    [&](const Flow& flow) { return flow.parent != kNobody; });
    std::uint64_t gain = chunks_of(i) - conduct(i).mark;
    if (gain == 0 || unfinished == 0) continue;  // Not begun, dead, or at the end.
    gains.push_back(gain);
    rates.push_back(static_cast<float>(gain) / window / static_cast<float>(unfinished));
  }
  auto median = [](auto& values) {
    auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
  };
  // Where the last few are left their own pace says nothing about what is due; the old one holds.
  if (gains.size() * 10 < trees.members() || gains.empty()) {
    if (window > 10 * kWindow) pace = average_pace;
    return;
  }
  if (median(gains) < kWindowChunks && window < 10 * kWindow) return;
  float measured = median(rates);
  average_pace = average_pace == 0 ? measured : 0.75f * average_pace + 0.25f * measured;
  pace = std::clamp(measured, average_pace / 4, average_pace * 1.25f);
  limit = std::max(kPatience * pace, kPatienceChunks);
  trees.set_slack(4 + static_cast<std::uint32_t>(kPatience * pace));
  window_began = now;
  for (Index i = 1; i < trees.end(); ++i) conduct(i).mark = chunks_of(i);
}

// The parent has something for it.
bool Scheduler::State::is_fed(Index i, std::uint32_t stripe) const {
  const Flow& flow = trees.node(i).flows[stripe];
  if (flow.parent == kNobody) return false;
  if (trees.has(flow.parent, stripe)) return true;
  // One chunk is on its way at any time.
  return trees.node(flow.parent).flows[stripe].count >= flow.count + 2;
}

void Scheduler::State::charge(float elapsed) {
  for (Index i = 1; i < trees.end(); ++i) {
    Node& node = trees.node(i);
    if (!node.member) continue;
    for (std::uint32_t s = 0; s < trees.stripes(); ++s) {
      Flow& flow = node.flows[s];
      auto came = static_cast<float>(flow.count - flow.seen);
      flow.seen = flow.count;
      if (last_tick - flow.since < kGrace || !is_fed(i, s)) {
        flow.debt = 0;
      } else {
        float owed = flow.debt + kTolerance * pace * elapsed - came;
        // Who recovers is not held to all of it.
        flow.debt = std::clamp(owed, 0.0f, node.slow ? limit / 2 : 2 * limit);
      }
    }
  }
}

// Lets slow nodes serve again that have kept the pace for a while.
void Scheduler::State::acquit(float now) {
  if (slow == 0) return;
  for (Index i = 1; i < trees.end(); ++i) {
    const Node& node = trees.node(i);
    if (!node.member || !node.slow) continue;
    bool fed = false;
    bool late = false;
    for (std::uint32_t s = 0; s < trees.stripes(); ++s) {
      fed = fed || is_fed(i, s) || node.flows[s].count > node.flows[s].seen;
      late = late || node.flows[s].debt > limit / 3;
    }
    if (late || !fed) conduct(i).well_since = now;
    if (conduct(i).for_good || conduct(i).relapses > kRelapses) continue;
    if (now - conduct(i).well_since < kWellFor) continue;
    --slow;
    trees.set_slow(i, false);
  }
}

void Scheduler::State::judge(float now) {
  std::vector<Child> late;
  std::size_t fed = 0;
  for (Index i = 1; i < trees.end(); ++i) {
    const Node& node = trees.node(i);
    if (!node.member || node.slow) continue;
    for (std::uint32_t s = 0; s < trees.stripes(); ++s) {
      if (!is_fed(i, s)) continue;
      ++fed;
      if (node.flows[s].debt > limit) late.push_back({s, i});
    }
  }
  if (late.empty()) return;
  if (late.size() * 2 > fed && fed >= 16) {
    // If most are late then it is not for a fault of theirs.
    for (Child c : late) trees.node(c.node).flows[c.stripe].debt = 0;
    return;
  }
  // A few at a time, the worst first by far: what is repaired may be what others wait for.
  std::size_t budget = std::max<std::size_t>(8, fed / 32);
  std::erase_if(late, [&](Child c) {
    if (trees.node(c.node).slow) return true;
    if (budget == 0 || !judge_child(c.node, now)) return false;
    --budget;
    return true;
  });
  for (Child c : late) {
    if (budget == 0) return;
    // Another verdict may have moved it meanwhile.
    if (trees.node(c.node).slow || trees.node(c.node).flows[c.stripe].debt <= limit) continue;
    judge_flow(c.node, c.stripe, now);
    --budget;
  }
}

// True if it is slow in all that it could get.
bool Scheduler::State::judge_child(Index i, float now) {
  std::size_t fed = 0;
  for (std::uint32_t s = 0; s < trees.stripes(); ++s) {
    if (!is_fed(i, s)) continue;
    ++fed;
    if (trees.node(i).flows[s].debt <= limit / 2) return false;
  }
  return fed >= 2 && make_slow(i, "was much slower than the others, so it served none", now);
}

void Scheduler::State::judge_flow(Index i, std::uint32_t stripe, float now) {
  Index parent = trees.node(i).flows[stripe].parent;
  if (parent == kHeadNode) return;  // The head's connections are watched by the head.
  std::size_t late = 0;
  std::size_t all = 0;
  for (Child child : trees.node(parent).children) {
    const Node& node = trees.node(child.node);
    if (node.slow || !is_fed(child.node, child.stripe)) continue;
    ++all;
    if (node.flows[child.stripe].debt > limit / 2) ++late;
  }
  const bool crowded = trees.node(parent).load > trees.stripes();
  add_once(conduct(parent).strikes, i);
  if (!crowded && ((late >= 2 && late * 2 > all) || conduct(parent).strikes.size() >= kStrikes)) {
    conduct(parent).for_good = true;
    if (make_slow(parent, "was slow in sending, so it served none", now)) return;
  }
  trees.avoid(i, parent, now + kAvoidAfterFault);
  trees.place(i, stripe, now);
}

std::vector<Assignment> Scheduler::take_assignments() {
  return state_->trees.take_assignments();
}

std::vector<Remark> Scheduler::take_remarks() {
  return std::exchange(state_->remarks, {});
}

bool Scheduler::complete() const {
  const Trees& trees = state_->trees;
  for (std::uint32_t s = 0; s < trees.stripes(); ++s) {
    if (trees.whole(s) < trees.members()) return false;
  }
  return true;
}

bool Scheduler::is_free(PeerId peer) const {
  Index i = state_->trees.find(peer);
  return i == kNobody || state_->trees.node(i).children.empty();
}

SwarmNumbers Scheduler::numbers() const {
  const Trees& trees = state_->trees;
  SwarmNumbers numbers;
  numbers.assignments = trees.assignments();
  numbers.repairs = trees.repairs();
  numbers.members = trees.members();
  numbers.slow = state_->slow;
  numbers.from_head = trees.node(kHeadNode).children.size();
  for (Index i = 1; i < trees.end(); ++i) {
    if (!trees.node(i).member) continue;
    bool whole = true;
    for (std::uint32_t s = 0; s < trees.stripes(); ++s) {
      if (trees.has(i, s)) continue;
      whole = false;
      std::uint32_t depth = trees.depth(i, s);
      if (depth != kNobody) numbers.depth = std::max<std::size_t>(numbers.depth, depth);
    }
    if (whole) ++numbers.complete;
  }
  return numbers;
}

std::uint32_t choose_stripes(std::size_t nodes, std::uint32_t chunks) {
  constexpr std::size_t kMost = 4;
  return static_cast<std::uint32_t>(
      std::clamp<std::size_t>(std::min<std::size_t>(nodes, chunks), 1, kMost));
}

}  // namespace dsi::distribute

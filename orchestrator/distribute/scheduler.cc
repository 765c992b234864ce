#include "orchestrator/distribute/scheduler.h"

#include <algorithm>
#include <utility>

#include "orchestrator/distribute/scheduler_state.h"

namespace dsi::distribute {

namespace {

constexpr float kForever = 1e30f;
constexpr float kTogether = 2;        // Complaints within so many seconds are about one event.
constexpr std::size_t kAccusers = 3;  // Who calls so many peers corrupt is so itself.

}  // namespace

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
  state.conduct(i).reported = true;
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
  move(child, parent, stripe, now);
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

void Scheduler::tick(Time at) {
  State& state = *state_;
  if (!state.started) return;
  float now = state.seconds(at);
  float elapsed = now - state.last_tick;
  if (elapsed <= 0) return;
  state.last_tick = now;
  state.measure_pace(now);
  state.trees.relieve(now);
  state.charge(elapsed);  // A head that slept knows nothing of that time.
  if (state.pace <= 0) return;
  state.acquit(now);
  state.judge(now);
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
  Trees& trees = state_->trees;
  SwarmNumbers numbers;
  numbers.assignments = trees.assignments();
  numbers.repairs = trees.repairs();
  numbers.members = trees.members();
  numbers.slow = state_->slow;
  numbers.from_head = trees.node(kHeadNode).children.size();
  numbers.complete = trees.complete();
  numbers.depth = trees.deepest();
  return numbers;
}

std::uint32_t choose_stripes(std::size_t nodes, std::uint32_t chunks) {
  constexpr std::size_t kMost = 4;
  return static_cast<std::uint32_t>(
      std::clamp<std::size_t>(std::min<std::size_t>(nodes, chunks), 1, kMost));
}

}  // namespace dsi::distribute

// Judges by the counts who lags behind, and through whose fault.
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

#include <algorithm>
#include <utility>

#include "orchestrator/distribute/scheduler_state.h"

namespace dsi::distribute {

namespace {

constexpr float kPatience = 0.35f;     // Seconds behind the pace; reports come every 0.2 s or so.
constexpr float kPatienceChunks = 3;   // The least, for where a chunk takes long.
constexpr float kTolerance = 0.75f;    // Of the pace; who keeps to that is never slow.
constexpr float kFirstWindow = 0.25f;  // Seconds from the start until there is a first pace.
constexpr float kWindow = 0.4f;        // Over which the pace is measured, or longer, until
constexpr std::uint32_t kWindowChunks = 4;  // a node has got so many.
constexpr float kWellFor = 1.5f;            // A slow node that keeps the pace so long serves again,
constexpr int kRelapses = 2;                // but so often only.
constexpr double kMostSlow = 0.45;          // Of the members: with fewer to serve nothing is won.
constexpr std::size_t kStrikes = 3;  // Children taken from a parent one by one: it is the parent.
constexpr std::size_t kMoves = 3;    // With so many parents within kMovesWithin seconds a child
constexpr float kMovesWithin = 4;    // was late: it is the child.

constexpr char kMuchSlower[] = "was much slower than the others, so it served none";

}  // namespace

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

// Another parent, since it gets too little from this one.
void Scheduler::State::move(Index child, Index parent, std::uint32_t stripe, float now) {
  std::vector<float>& moves = conduct(child).moves;
  std::erase_if(moves, [&](float when) { return when < now - kMovesWithin; });
  moves.push_back(now);
  if (moves.size() >= kMoves && !trees.node(child).slow) make_slow(child, kMuchSlower, now);
  // One that is slow anyway loses by every move what is under way to it.
  if (moves.size() >= kMoves && trees.node(parent).serves() &&
      trees.node(child).flows[stripe].parent == parent) {
    return trees.tell_again(child, stripe);
  }
  trees.avoid(child, parent, now + kAvoidAfterFault);
  trees.place(child, stripe, now);
}

void Scheduler::State::measure_pace(float now) {
  float window = now - window_began;
  if (window < (pace == 0 ? kFirstWindow : kWindow)) return;
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
  // A head that slept knows nothing of that time.
  elapsed = std::min(elapsed, kPatience / 2);
  const bool first = pace > 0 && !charged;
  charged = charged || first;
  for (Index i = 1; i < trees.end(); ++i) {
    Node& node = trees.node(i);
    if (!node.member) continue;
    for (std::uint32_t s = 0; s < trees.stripes(); ++s) {
      Flow& flow = node.flows[s];
      if (last_tick - flow.since < kGrace || !is_fed(i, s)) {
        flow.debt = 0;
        flow.seen = flow.count;
        continue;
      }
      // Until there is a pace, the debt is counted in seconds.
      if (pace == 0) {
        flow.debt += elapsed;
        continue;
      }
      auto came = static_cast<float>(flow.count - flow.seen);
      flow.seen = flow.count;
      float owed = first ? (flow.debt + elapsed) * kTolerance * pace - came
                         : flow.debt + kTolerance * pace * elapsed - came;
      // Who recovers is not held to all of it.
      flow.debt = std::clamp(owed, 0.0f, node.slow ? limit / 2 : 2 * limit);
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
    // What a node owes in all stripes right after it reported is no accident of one connection,
    // nor of a report that is late: half the debt will do.
    const float enough = std::exchange(conduct(i).reported, false) && lags(i) ? limit / 2 : limit;
    for (std::uint32_t s = 0; s < trees.stripes(); ++s) {
      if (!is_fed(i, s)) continue;
      ++fed;
      if (node.flows[s].debt > enough) late.push_back({s, i});
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
    if (budget == 0 || !lags(c.node)) return false;
    if (!make_slow(c.node, kMuchSlower, now)) return false;
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

// It is slow in all that it could get.
bool Scheduler::State::lags(Index i) const {
  std::size_t fed = 0;
  for (std::uint32_t s = 0; s < trees.stripes(); ++s) {
    const Flow& flow = trees.node(i).flows[s];
    // What has just got another parent proves nothing.
    if (!is_fed(i, s) || last_tick - flow.since < kGrace + kPatience) continue;
    ++fed;
    if (flow.debt <= limit / 2) return false;
  }
  return fed >= 2;
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
  move(i, parent, stripe, now);
}

}  // namespace dsi::distribute

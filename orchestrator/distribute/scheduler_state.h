#pragma once

// What the scheduler remembers: the trees, what each node did, and the pace of the swarm.
// scheduler.cc hears of events and judges what nodes say of each other; lag.cc judges by the
// counts.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "orchestrator/distribute/scheduler.h"
#include "orchestrator/distribute/trees.h"

namespace dsi::distribute {

inline constexpr float kGrace = 0.25f;        // Seconds; for a new connection.
inline constexpr float kAvoidAfterFault = 5;  // Seconds

// What a node did; what Trees need not know.
struct Conduct {
  std::uint64_t mark = 0;  // Chunks when the window began.
  float well_since = 0;    // Only for a slow one.
  int relapses = 0;
  bool reported = false;               // Since the last tick.
  bool for_good = false;               // Slow in sending: that it receives well proves nothing.
  bool has_served = false;             // Something came from it to another node.
  bool has_connected = false;          // Something came to it from another node.
  std::vector<Index> unreachable_for;  // Children
  std::vector<Index> cannot_reach;     // Parents
  std::vector<Index> calls_corrupt;    // Parents
  std::vector<std::pair<Index, float>> closed_for;  // Children, and when.
  std::vector<float> moves;                         // When it got another parent for being late.
  std::vector<Index> strikes;                       // Children that were taken from it one by one.
};

// Adds it unless it is there.
inline bool add_once(std::vector<Index>& list, Index i) {
  if (std::find(list.begin(), list.end(), i) != list.end()) return false;
  list.push_back(i);
  return true;
}

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
  void move(Index child, Index parent, std::uint32_t stripe, float now);
  void corrupt(Index child, Index parent, std::uint32_t stripe, float now);

  bool make_slow(Index i, const char* why, float now);
  void measure_pace(float now);
  bool is_fed(Index i, std::uint32_t stripe) const;
  void charge(float elapsed);
  void judge(float now);
  bool lags(Index i) const;
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
  bool charged = false;    // Debts are in chunks.
  std::size_t slow = 0;    // Members
};

}  // namespace dsi::distribute

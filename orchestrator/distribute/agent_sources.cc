#include "orchestrator/distribute/agent_sources.h"

#include <arpa/inet.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>

namespace dsi::distribute {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

namespace {

// So many hosts must have failed to reach another, and none succeeded, before nobody is believed to
// be reachable.
constexpr std::size_t kClosed = 4;
// So many hosts must have got the agent without a port to pass it on by, before the others are
// believed to have none either.
constexpr std::size_t kFruitless = 2;

// What a host says of itself ends up in a request to another host: nothing but an address may.
bool is_numeric_address(const std::string& text) {
  in6_addr address{};
  return ::inet_pton(AF_INET, text.c_str(), &address) == 1 ||
         ::inet_pton(AF_INET6, text.c_str(), &address) == 1;
}

}  // namespace

struct AgentSources::State {
  struct Entry {
    Source source;
    std::size_t load = 0;
    std::size_t faults = 0;
    bool gone = false;
  };

  explicit State(Limits given) : limits(given) {}

  const Limits limits;
  mutable std::mutex mutex;
  std::condition_variable_any changed;
  std::vector<Entry> entries;
  std::size_t head_load = 0;
  std::size_t head_copies = 0;  // Begun and not failed.
  std::size_t coming = 0;       // Leases that are alive: each may become a source.
  std::size_t fruitless = 0;    // Deliveries whose host did not become one.
  std::size_t became = 0;
  std::size_t unreached = 0;
  Numbers counts;
  Clock::time_point moved = Clock::now();
  std::uint64_t events = 0;

  void tell_all() {
    ++events;
    changed.notify_all();
  }

  bool is_good(const Entry& entry) const { return !entry.gone && entry.faults < limits.faults; }

  // The good one with the least to do that this host has not tried.
  Entry* choose(const std::vector<std::string>& avoid) {
    Entry* best = nullptr;
    for (Entry& entry : entries) {
      if (!is_good(entry) || entry.load >= limits.from_source) continue;
      if (std::find(avoid.begin(), avoid.end(), entry.source.name) != avoid.end()) continue;
      if (best == nullptr || entry.load < best->load) best = &entry;
    }
    return best;
  }

  // True if a host that waits can hope for a source that it has not tried.
  bool hope(const std::vector<std::string>& avoid) const {
    return coming > 0 || std::any_of(entries.begin(), entries.end(), [&](const Entry& entry) {
             return is_good(entry) &&
                    std::find(avoid.begin(), avoid.end(), entry.source.name) == avoid.end();
           });
  }

  bool alone() const {
    return (unreached >= kClosed && counts.from_hosts == 0) ||
           (became == 0 && fruitless >= kFruitless);
  }

  bool head_is_free(const std::vector<std::string>& avoid, bool only_head) const {
    if (alone()) return head_load < limits.from_head_alone;
    if (head_load >= limits.from_head) return false;
    return only_head || head_copies < limits.first || !hope(avoid) ||
           Clock::now() - moved >= limits.patience;
  }

  Entry* find(const std::string& name) {
    auto at = std::find_if(entries.begin(), entries.end(),
                           [&](const Entry& entry) { return entry.source.name == name; });
    return at != entries.end() ? &*at : nullptr;
  }

  void add(Source source) {
    std::erase_if(source.addresses, [](const auto& text) { return !is_numeric_address(text); });
    if (source.port == 0 || source.addresses.empty()) return;
    moved = Clock::now();
    ++became;
    if (Entry* known = find(source.name)) {
      // A second connection to a host: its agent listens anew.
      known->source = std::move(source);
      known->faults = 0;
      known->gone = false;
    } else {
      entries.push_back({std::move(source)});
    }
    tell_all();
  }
};

AgentSources::Limits AgentSources::limits_for(std::size_t hosts, std::size_t wire_size) {
  constexpr std::size_t kBytesAHost = 32 * 1024;
  Limits limits;
  limits.first =
      std::clamp<std::size_t>(hosts * kBytesAHost / std::max<std::size_t>(wire_size, 1), 1, 8);
  return limits;
}

AgentSources::AgentSources(Limits limits) : state_(std::make_unique<State>(limits)) {}
AgentSources::~AgentSources() = default;

AgentSources::Lease::Lease(AgentSources* owner, std::optional<Source> source)
    : owner_(owner), source_(std::move(source)) {}

AgentSources::Lease::Lease(Lease&& other) noexcept
    : owner_(std::exchange(other.owner_, nullptr)),
      source_(std::move(other.source_)),
      holds_place_(other.holds_place_),
      delivered_(other.delivered_) {}

void AgentSources::Lease::end(bool delivered, bool blame) {
  State& state = *owner_->state_;
  std::lock_guard lock(state.mutex);
  if (!std::exchange(holds_place_, false)) return;
  delivered_ = delivered;
  state.moved = Clock::now();
  if (from_head()) {
    --state.head_load;
    delivered ? ++state.counts.from_head : --state.head_copies;
  } else if (State::Entry* entry = state.find(source_->name)) {
    --entry->load;
    if (delivered) {
      ++state.counts.from_hosts;
      entry->faults = 0;
    } else if (blame) {
      ++entry->faults;
      ++state.counts.failed;
      ++state.unreached;
    }
  }
  state.tell_all();
}

void AgentSources::Lease::delivered() {
  end(true, false);
}

void AgentSources::Lease::failed() {
  end(false, true);
}

void AgentSources::Lease::becomes(Source self) {
  State& state = *owner_->state_;
  {
    std::lock_guard lock(state.mutex);
    --state.coming;
    state.add(std::move(self));
    state.tell_all();
  }
  owner_ = nullptr;
}

AgentSources::Lease::~Lease() {
  if (owner_ == nullptr) return;
  end(false, false);
  State& state = *owner_->state_;
  std::lock_guard lock(state.mutex);
  --state.coming;
  if (delivered_) ++state.fruitless;
  state.tell_all();
}

Result<AgentSources::Lease> AgentSources::acquire(const std::vector<std::string>& avoid,
                                                  bool from_head, Deadline deadline,
                                                  std::stop_token stop) {
  // Patience runs out without an event.
  constexpr std::chrono::milliseconds kLook = 250ms;
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  for (;;) {
    if (stop.stop_requested()) return fail("interrupted while waiting for the agent");
    bool only_head = from_head || state.alone();
    if (State::Entry* entry = only_head ? nullptr : state.choose(avoid)) {
      ++entry->load;
      ++state.coming;
      return Lease(this, entry->source);
    }
    if (state.head_is_free(avoid, from_head)) {
      ++state.head_load;
      ++state.head_copies;
      ++state.coming;
      return Lease(this, std::nullopt);
    }
    if (deadline.passed()) {
      return fail_with_help("no host had the time to pass the agent on",
                            "try again: hosts that have it by now pass it on");
    }
    state.changed.wait_for(lock, stop, std::min(deadline.left(), kLook),
                           [&, seen = state.events] { return state.events != seen; });
  }
}

void AgentSources::add(Source source) {
  std::lock_guard lock(state_->mutex);
  state_->add(std::move(source));
}

bool AgentSources::withdraw(const std::string& name, Deadline deadline, std::stop_token stop) {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  State::Entry* entry = state.find(name);
  if (entry == nullptr) return true;
  entry->gone = true;
  // Others may have waited for this one.
  state.tell_all();
  return state.changed.wait_for(lock, stop, deadline.left(),
                                [&] { return state.find(name)->load == 0; });
}

AgentSources::Numbers AgentSources::numbers() const {
  std::lock_guard lock(state_->mutex);
  Numbers numbers = state_->counts;
  numbers.sources = static_cast<std::size_t>(
      std::count_if(state_->entries.begin(), state_->entries.end(),
                    [&](const State::Entry& entry) { return state_->is_good(entry); }));
  return numbers;
}

}  // namespace dsi::distribute

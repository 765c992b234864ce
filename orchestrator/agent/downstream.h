#pragma once

// The nodes that take chunks from this one, its children. None of them can make another wait: each
// has its own small socket buffer, and at most one record of each waits here.

#include <poll.h>

#include <list>
#include <map>
#include <string>
#include <vector>

#include "orchestrator/agent/swarm_state.h"
#include "orchestrator/base/in_flight.h"

namespace dsi::agent {

// How much may be sent: `rate` bytes a second, with bursts of a tenth of a second. 0: no limit.
class RateLimit {
 public:
  explicit RateLimit(std::uint64_t rate = 0)
      : rate_(static_cast<double>(rate)), left_(rate_ / 10) {}
  // Whether anything may be sent now.
  bool allows(Moment now);
  void spend(std::size_t bytes) { left_ -= static_cast<double>(bytes); }
  // Until it allows something again.
  std::chrono::milliseconds wait() const;

 private:
  double rate_;
  double left_;
  Moment refilled_{};
};

class Downstream {
 public:
  explicit Downstream(SwarmState& state) : state_(state) {}

  void limit_rate(std::uint64_t rate) { limit_ = RateLimit(rate); }
  // A connection whose first four bytes, not yet read, are kPeerMagic.
  void admit(UniqueFd socket, Moment now);
  void clear() { children_.clear(); }
  bool empty() const { return children_.empty(); }
  // Connections that have not yet proved that they may be here.
  std::size_t half_open() const;
  // Closes the one of them that has waited longest.
  void drop_half_open();

  void add_to(std::vector<pollfd>& fds);
  // After poll(): what it found, and what the time makes due.
  void work(const std::vector<pollfd>& fds, Moment now);
  // Gives each child what it lacks and its socket takes, chunk by chunk in turn.
  void serve(Moment now);
  // Until serve() may send again if the rate is all that hinders it; otherwise `most`.
  std::chrono::milliseconds wait(std::chrono::milliseconds most) const;

 private:
  struct Stripe {
    std::vector<bool> has;    // Of its chunks; what is on the way to it counts.
    std::uint32_t begin = 0;  // All before are there.
  };
  struct Child {
    explicit Child(PeerLink opened) : link(std::move(opened)) {}
    PeerLink link;
    InFlight in_flight;
    std::size_t slot = 0;
    bool greeted = false;
    std::map<std::uint32_t, Stripe> stripes;
    std::vector<std::string> early;  // Payloads of kFollow that came before the index.
    bool wants_index = false;
    std::size_t index_sent = 0;
    Moment since{};
    Moment heard{};
    Moment said{};
    bool gone = false;
  };

  void exchange(Child& child, Moment now);
  bool obey(Child& child, const Record& record, Moment now);
  bool begin_stripe(Child& child, std::string_view payload) const;
  bool send_next(Child& child, Moment now);
  bool send_index(Child& child);
  bool send_chunk(Child& child);
  void judge(Child& child, Moment now);

  SwarmState& state_;
  RateLimit limit_;
  bool limited_ = false;  // serve() ended because of the limit.
  bool more_ = false;     // It ended because it was time to look at what arrives.
  std::list<Child> children_;
};

}  // namespace dsi::agent

#pragma once

// The nodes that this one takes chunks from, its parents: one connection each, for all the stripes
// that it follows there.

#include <poll.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "orchestrator/agent/protocol.h"
#include "orchestrator/agent/swarm_state.h"

namespace dsi::agent {

class Upstream {
 public:
  explicit Upstream(SwarmState& state) : state_(state) {}

  // Whoever had the stripe before is unfollowed.
  void follow(const protocol::Follow& follow, Moment now);
  // The index is here, from wherever: what waited for it can go on.
  void index_came(Moment now);
  void clear() { parents_.clear(); }
  bool empty() const { return parents_.empty(); }

  void add_to(std::vector<pollfd>& fds);
  // After poll(): what it found, and what the time makes due.
  void work(const std::vector<pollfd>& fds, Moment now);

  // Since the last call.
  std::vector<protocol::PeerFault> take_faults() { return std::exchange(faults_, {}); }
  // The disk does not take what comes.
  const std::optional<Error>& disk_error() const { return disk_error_; }

 private:
  struct Parent {
    std::int64_t id = 0;
    std::uint16_t port = 0;
    std::vector<std::string> addresses;
    std::size_t next_address = 0;
    UniqueFd connecting;
    std::optional<PeerLink> link;
    std::size_t slot = 0;  // In the list for poll(); 0: not in it.
    std::set<std::uint32_t> stripes;
    std::set<std::uint32_t> asked;  // Those that it was told of.
    bool said_hello = false;
    bool greeted = false;  // It is who it should be.
    bool index_asked = false;
    std::string index;
    Moment heard{};
    Moment said{};
    // What an address before this one gave, if that says more than the last one.
    std::string kind;
    std::string detail;
    bool gone = false;
  };

  void unfollow(Parent& parent, std::uint32_t stripe);
  void connect_next(Parent& parent, Moment now);
  void failed_here(Parent& parent, std::string kind, std::string detail, Moment now);
  void give_up(Parent& parent, const std::string& kind, const std::string& detail);
  void finish_connecting(Parent& parent, Moment now);
  void exchange(Parent& parent, Moment now);
  void obey(Parent& parent, const Record& record, Moment now);
  void take_index(Parent& parent, std::string_view bytes, Moment now);
  void take_chunk(Parent& parent, std::string_view payload);
  void ask(Parent& parent, Moment now);
  void say(Parent& parent, RecordType type, std::string_view payload, Moment now);
  void judge(Parent& parent, Moment now);
  void sweep();

  SwarmState& state_;
  std::map<std::int64_t, Parent> parents_;
  std::vector<protocol::PeerFault> faults_;
  std::optional<Error> disk_error_;
};

}  // namespace dsi::agent

#pragma once

// From whom a host without an agent gets one: from a host that has it, and from the head only as
// long as nobody has it or nobody can be reached.
//
// The number of sources doubles in about the time of one copy, so that n hosts have the agent after
// log2(n) of them; the head sends a handful of copies whatever n is.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "orchestrator/base/deadline.h"
#include "orchestrator/base/result.h"

namespace dsi::distribute {

// Thread-safe. Outlives its leases.
class AgentSources {
 public:
  // A host whose agent listens and passes itself on.
  struct Source {
    std::string name;
    std::uint16_t port = 0;
    std::vector<std::string> addresses;  // In numbers; others are left away.
  };

  struct Limits {
    std::size_t first = 1;            // Copies that the head sends without waiting for a source.
    std::size_t from_source = 2;      // Copies that one source sends at a time.
    std::size_t from_head = 2;        // The same for the head,
    std::size_t from_head_alone = 8;  // and where no host can be reached by another.
    std::size_t faults = 2;           // A source that fails as many times in a row is left alone.
    // Nothing has moved for so long: who waits may ask the head.
    std::chrono::milliseconds patience{15'000};
  };
  // Enough first copies for a quick start, and few against 64 KiB a host.
  static Limits limits_for(std::size_t hosts, std::size_t wire_size);

  explicit AgentSources(Limits limits);
  ~AgentSources();
  AgentSources(const AgentSources&) = delete;
  AgentSources& operator=(const AgentSources&) = delete;

  // The right to take one copy from somewhere. Gives the place back when it goes, as after a
  // failure that nobody is to blame for unless it was told otherwise.
  class Lease {
   public:
    Lease(Lease&& other) noexcept;
    Lease& operator=(Lease&&) = delete;
    ~Lease();

    bool from_head() const { return !source_; }
    const Source& source() const { return *source_; }  // Not from_head().

    // The agent has arrived: the place is free for another host. As long as the lease lives others
    // may hope for this host as a source.
    void delivered();
    // This host passes the agent on from now on. After delivered().
    void becomes(Source self);
    // It did not arrive, and the source is to blame.
    void failed();

   private:
    friend class AgentSources;
    Lease(AgentSources* owner, std::optional<Source> source);
    void end(bool delivered, bool blame);

    AgentSources* owner_;
    std::optional<Source> source_;
    bool holds_place_ = true;
    bool delivered_ = false;
  };

  // Waits for a source that is free. `avoid`: names of those that this host has tried in vain.
  // `from_head`: only the head will do.
  Result<Lease> acquire(const std::vector<std::string>& avoid, bool from_head, Deadline deadline,
                        std::stop_token stop);

  // A host that had the agent before the run.
  void add(Source source);
  // The host is about to leave: nobody is sent to it any more. Then waits until nobody takes
  // anything from it; false if that lasts too long.
  bool withdraw(const std::string& name, Deadline deadline, std::stop_token stop);

  struct Numbers {
    std::size_t from_head = 0;   // Copies that arrived.
    std::size_t from_hosts = 0;  // The same.
    std::size_t failed = 0;      // Sources blamed, all together.
    std::size_t sources = 0;     // Now.
  };
  Numbers numbers() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dsi::distribute

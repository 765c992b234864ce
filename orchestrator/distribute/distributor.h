#pragma once

// Brings the files of one payload to the hosts of one run: who needs the same exchanges it in one
// swarm. Thread-safe.

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "orchestrator/agent/protocol.h"
#include "orchestrator/base/deadline.h"
#include "orchestrator/bundle.h"
#include "orchestrator/distribute/content_cache.h"
#include "orchestrator/distribute/swarm.h"

namespace dsi::distribute {

class Distributor {
 public:
  // `cache` keeps what patches are made from. All three outlive this.
  Distributor(const Payload& payload, WireFiles& files, const ContentCache& cache);
  ~Distributor();

  // Before the hosts' threads begin: each of so many will enroll or be excused.
  void expect(std::size_t hosts);
  // The host needs files. Returns its swarm, once nobody else can be expected to join it from the
  // beginning; the caller is enrolled then. An error if a file cannot be read or the stop came.
  Result<Swarm*> enroll(PeerId peer, const protocol::Need& need,
                        const protocol::Listening& listening, std::stop_token stop);
  // The host needs nothing, or cannot be worked on. Also after an enroll() that failed.
  void excuse(PeerId peer);

  // For a run without a swarm: the file itself or a patch, as the host's `need` allows.
  Result<ObjectFile> object_for(const std::string& digest, const protocol::Need& need);

  // Every host that is left in a swarm has everything and, unless the run is to `begin_nothing` any
  // more, everybody who was expected has spoken.
  bool complete(bool begin_nothing) const;

  std::uint64_t bytes_done() const;
  std::uint64_t bytes_wanted() const;
  std::vector<SwarmStory> stories() const;
  std::vector<Remark> take_remarks();

 private:
  // What decides to which swarm a host belongs: the objects, as (digest, base).
  using Objects = std::vector<std::pair<std::string, std::string>>;
  Result<Objects> objects_for(const protocol::Need& need);
  Result<Swarm*> make_swarm(const Objects& objects, std::size_t hosts);
  void begin();
  void has_spoken(PeerId peer);

  const Payload& payload_;
  WireFiles& files_;
  const ContentCache& cache_;

  struct Applicant {
    PeerId peer;
    protocol::Listening listening;
    Objects objects;
  };
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::size_t outstanding_ = 0;
  std::set<PeerId> spoken_;  // Counts each host once: one that fails to enroll is excused as well.
  bool begun_ = false;
  Deadline::Clock::time_point last_application_{};
  std::vector<Applicant> applicants_;
  std::map<Objects, Result<std::unique_ptr<Swarm>>> swarms_;
  std::jthread ticker_;
};

}  // namespace dsi::distribute

#pragma once

// The prefix on this node, and who may change it.
//
//   store/<sha256>, store/<sha256>.x   whole files; two names because hard links share a mode
//   store/<sha256>.lzma                an agent as it travels, for nodes that have none yet
//   incoming/<digest of an index>/     what a swarm has brought so far (incoming.h); the only thing
//                                      that is in part and is kept: an interrupted run goes on
//                                      there
//   releases/<id>/…                    complete, always: made as <id>.partial, renamed when done
//   current -> releases/<id>           switched by rename
//   probes.json                        what the last probes found and rest on (remembered.h)
//   hold.json                          the node keeps what it has (hold.h)
//   nodes.json                         what the nodes that see this prefix may use (nodes.h)
//   state.json                         who, when, from, to; a record, and the way back
//   lock                               held by flock for as long as somebody changes anything
//
// How an agent that is killed anywhere leaves nothing to repair: every name that means something
// (a store file, a release, current, state.json) appears and disappears by one rename. Everything
// unfinished is called *.partial, and whoever holds the lock knows that each *.partial is garbage.

#include <chrono>
#include <ctime>
#include <optional>
#include <string>
#include <vector>

#include "orchestrator/agent/folder.h"
#include "orchestrator/agent/wire.h"

namespace dsi::agent {

// Who asks, for the lock and for state.json.
struct Requester {
  std::string run;
  std::string by;
};

// What `current` points to, if that is a release; what rollback would go back to.
struct Releases {
  std::string current;
  std::string previous;
};

// Reads only. Empty where there is nothing.
Releases find_releases(const std::string& prefix);
// All that are there: the current one, the previous one, others. Reads only.
std::vector<std::string> list_releases(const std::string& prefix);

// The prefix, locked. There is at most one per prefix on all nodes that see it.
class Prefix {
 public:
  // Makes the prefix with its folders, takes the lock (waiting up to `wait`, or until the head
  // leaves) and removes what earlier runs left unfinished.
  static Result<Prefix> lock(const std::string& path, const Requester& requester,
                             std::chrono::seconds wait, Wire& wire);
  Prefix(Prefix&&) = default;
  Prefix& operator=(Prefix&&) = delete;
  ~Prefix();

  const Folder& root() const { return root_; }
  const Folder& store() const { return store_; }
  const Folder& releases() const { return releases_; }
  const Releases& there() const { return there_; }

  // Points `current` to a complete release, in one step. `there()` says so afterwards; the release
  // left becomes the previous one.
  Result<void> switch_to(const std::string& id);
  // Takes `current` away, in one step: what is in use is no release of this prefix. The release
  // left becomes the previous one.
  Result<void> leave_current();
  // Are there so many bytes, and inodes, for this user?
  Result<void> check_space(std::uint64_t bytes, std::uint64_t inodes) const;
  // What a swarm may have left here is of no more use.
  Result<void> drop_incoming();
  // Writes state.json.
  Result<void> record(const std::string& action, const std::string& from, const std::string& to);
  // A release is renamed first, so that it is never half there under its own name.
  Result<void> remove_release(const std::string& id);
  // Keeps the current release, the previous one, those that a process of this node has files of or
  // another node may use, and writes down what this node may use.
  Result<void> drop_releases();
  // That, and the store files that no release holds.
  Result<void> prune();
  // Undoes what lock() made, as far as nothing is in it. For a first install that failed.
  void leave_no_trace();
  // Removes everything that this program can have made, the prefix too if nothing else is in it.
  Result<void> remove_all();

 private:
  Prefix(Folder root, Folder store, Folder releases, UniqueFd lock, Requester requester)
      : root_(std::move(root)),
        store_(std::move(store)),
        releases_(std::move(releases)),
        lock_(std::move(lock)),
        requester_(std::move(requester)) {}

  void remove_leftovers();

  Folder root_;
  Folder store_;
  Folder releases_;
  UniqueFd lock_;
  Requester requester_;
  Releases there_;
};

// 64 lower-case hexadecimal digits.
bool is_digest(std::string_view text);

// Name in the store.
std::string store_name(const std::string& digest, mode_t mode);

// 2026-11-30T09:05:57Z
std::string utc_text(std::time_t time);
std::string utc_now();

// SHA-256 of this program's file.
const std::string& own_digest();

}  // namespace dsi::agent

#pragma once

// Ops tried in processes that are forked from one which has loaded what they need: libtorch takes
// most of a second to load, an op alone a millisecond.
//
// The process, `ds-probe --shared`, does what it is told on a socket (its protocol is at the top of
// ds_probe.c). It can fail, and an op can stop or kill it: then nothing is known of the ops that
// have not ended, and the caller tries them without it.

#include <sys/types.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "orchestrator/agent/child.h"
#include "orchestrator/base/deadline.h"
#include "orchestrator/base/unique_fd.h"

namespace dsi::agent {

// True for the libraries that are worth it: torch's own.
bool is_torch_library(std::string_view name);

// An op's process. Ended when `status` (waitpid's) is there, its process group then too.
struct ForkedOp {
  Output output;
  pid_t pid = 0;  // 0: not known yet.
  std::optional<int> status;
};

class SharedLoad {
 public:
  enum class State { loading, ready, failed };

  // `libraries`: sonames that the ops are linked to. `environment` as in ChildSpec. It has failed
  // if it has not loaded them when the deadline passes.
  SharedLoad(const std::string& probe, const std::set<std::string>& libraries,
             std::vector<std::string> environment, unsigned long cpu_seconds, Deadline deadline);
  SharedLoad(const SharedLoad&) = delete;
  SharedLoad& operator=(const SharedLoad&) = delete;
  // Kills what runs.
  ~SharedLoad();

  State state() const { return state_; }
  // For poll(2); -1 if it failed.
  int fd() const { return control_.get(); }
  // True if each of the libraries is loaded, each found by itself and not as another's dependency.
  bool has(const std::vector<std::string>& libraries) const;

  // Only when ready. Never null; look at `status` and at state() after each update().
  std::shared_ptr<ForkedOp> start(const std::string& library, const std::string& op,
                                  const std::string& device, const std::string& nonce);
  void kill(const ForkedOp& op);
  // Takes what has been said since, without waiting.
  void update();
  // Gives up: kills everything; state() is failed.
  void abandon();

 private:
  bool send(const std::vector<std::string>& words, const std::vector<int>& fds);
  bool hear(const std::string& said);

  State state_ = State::failed;
  Deadline deadline_;
  UniqueFd control_;
  std::optional<Child> process_;
  std::set<std::string> loaded_;
  std::vector<std::shared_ptr<ForkedOp>> ops_;  // Not ended, in the order of their start.
};

}  // namespace dsi::agent

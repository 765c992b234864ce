#pragma once

// Hosts that run other people's jobs are taken out of service before they are worked on and given
// back afterwards. One interface for every scheduler; slurm.h has Slurm's.

#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "orchestrator/base/result.h"
#include "orchestrator/ports/process.h"

namespace dsi {

class Drain {
 public:
  virtual ~Drain() = default;

  struct Taken {
    Error error;         // Not taken, and why; then the host must not be worked on.
    std::string remark;  // What somebody should know: "somebody else drained it: disk is broken".
  };
  // No new job begins on these hosts from now on. One answer for each, in their order. A host that
  // is out of service already may be worked on and stays out of it.
  virtual std::vector<Taken> take(const std::vector<std::string>& hosts) = 0;

  // For each host that was taken whether no job uses it any more. An error if nobody can say.
  virtual Result<std::vector<bool>> idle(const std::vector<std::string>& hosts) = 0;

  // Back into service, if it was this run that took it out and nobody has changed that since. A
  // remark if it stays out; empty if all is as before the run.
  virtual Result<std::string> give_back(const std::string& host) = 0;
};

// A site's own commands, each run by /bin/sh -c for one host with DSI_HOST and DSI_RUN in its
// environment. `take` returns when the host may be worked on, 0 for yes; `give_back` may be empty.
// Each may take as long as `limit`.
std::unique_ptr<Drain> make_command_drain(std::string take, std::string give_back, std::string run,
                                          std::chrono::seconds limit, ProcessRunner& processes,
                                          std::stop_token stop);

}  // namespace dsi

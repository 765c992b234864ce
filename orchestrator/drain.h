#pragma once

// Hosts that run other people's jobs are taken out of service before they are worked on and given
// back afterwards. One interface for every scheduler; slurm.h has Slurm's.

#include <chrono>
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
  // No new job begins on these hosts from now on; waits for none that runs. One answer for each, in
  // their order. A host that is out of service already may be worked on and stays out of it.
  virtual std::vector<Taken> take(const std::vector<std::string>& hosts) = 0;

  struct Standing {
    bool idle = false;   // No job uses it any more.
    Error error;         // It will not become idle, and why: not to be worked on.
    std::string remark;  // As Taken's.
  };
  // For each host that was taken, how it stands now. An error if nobody can say.
  virtual Result<std::vector<Standing>> look(const std::vector<std::string>& hosts) = 0;
  // How often it is worth to look.
  virtual std::chrono::milliseconds look_every() const = 0;

  // Back into service, each that this run took out and that nobody has changed since; one that was
  // not idle yet as well. Also after a stop. One answer for each: a remark if it stays out, empty
  // if all is as before the run, an error if it could not be given back.
  virtual std::vector<Result<std::string>> give_back(const std::vector<std::string>& hosts) = 0;
};

// A site's own commands, each run by /bin/sh -c for one host with DSI_HOST and DSI_RUN in its
// environment. `take` ends when its host may be worked on, 0 for yes; those of several hosts run
// side by side and each host is idle when its own has ended. One that is still running when its
// host is given back is ended. `give_back` may be empty. Each may take as long as `limit`.
std::unique_ptr<Drain> make_command_drain(std::string take, std::string give_back, std::string run,
                                          std::chrono::seconds limit, ProcessRunner& processes,
                                          std::stop_token stop);

}  // namespace dsi

#pragma once

// Slurm, by its own commands (scontrol): the nodes, and taking them out of service.

#include <functional>
#include <memory>
#include <set>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/base/result.h"
#include "orchestrator/drain.h"
#include "orchestrator/ports/process.h"

namespace dsi {

struct SlurmNode {
  std::string name;             // NodeName
  std::string host_name;        // NodeHostName
  std::string address;          // NodeAddr
  std::string state;            // The first word of State, without marks: IDLE, MIXED, DOWN, ...
  std::set<std::string> flags;  // The others: DRAIN, COMPLETING, NOT_RESPONDING, ...
  std::string reason;           // Without who set it and when.

  // Nobody's job is on it.
  bool free() const;
  // No job will begin on it.
  bool out_of_service() const;
};

// The nodes of `scontrol show node --oneliner`. Lines that are none are passed over.
std::vector<SlurmNode> parse_slurm_nodes(std::string_view text);

// Drains with the reason "ds-install <run>". A node that bears the reason of another run is taken
// over if `is_over` says that that run has ended: it was interrupted, and nobody else will give the
// node back. Every other node that is out of service stays so.
std::unique_ptr<Drain> make_slurm_drain(const std::string& run,
                                        std::function<bool(const std::string&)> is_over,
                                        ProcessRunner& processes, std::stop_token stop);

}  // namespace dsi

#pragma once

// Processes of this node that have files of what a change takes away.
//
// A process that maps a file keeps it, whatever becomes of the file's name; what it opens or
// imports later it looks for by name. So a release that any process has files of stays where it is
// (Prefix::prune), and a run may wait for such processes or spare the node.
//
// Only processes are seen that this user may look at: as root all of this node, else the user's
// own. A process in a container counts if it sees the folder under the same path.

#include <string>
#include <vector>

#include "orchestrator/agent/prefix.h"
#include "orchestrator/agent/protocol.h"
#include "orchestrator/agent/wire.h"

namespace dsi::agent {

// What processes may have files of.
struct InUse {
  std::string name;                  // BusyProcess::release
  std::vector<std::string> folders;  // Or files: absolute, without links.
};

// A release of this prefix; an empty id has no files.
InUse files_of_release(const Prefix& prefix, const std::string& id);
// What pip has installed under this name into `site`, by its RECORD.
InUse files_of_package(const std::string& site, const std::string& package);

// Those who have files of any of these, in the order of their numbers; a process that has files of
// two is there twice. This process is not.
std::vector<protocol::BusyProcess> find_processes(const std::vector<InUse>& all);

// "2 processes have files of release 0123456789abcdef: 4711 alice python3 train.py, ..."; at most
// three are named. Empty if there are none.
std::string describe(const std::vector<protocol::BusyProcess>& processes);

// Before anything is done: with "skip", as give_way() below, so that nothing is sent in vain.
Result<void> spare(const protocol::Care& care, const InUse& files, protocol::HostResult& result);

// Right before the change: with "wait" returns when nobody has files of `files` or the limit is
// over, and the head hears of it meanwhile; with "skip" and "proceed" at once. Those that are left
// go into `result`, and unless it is "proceed" they make its result "busy" with an error. An error
// if the head leaves.
Result<void> give_way(const protocol::Care& care, const InUse& files, Wire& wire,
                      protocol::HostResult& result);

}  // namespace dsi::agent

#pragma once

// Which releases the nodes that see a prefix may use (nodes.json).
//
// A node can look at its own processes only, and a prefix may be on a file system that many nodes
// mount. So each node, when a run comes to it, writes down which releases its processes may use:
// the current and the previous one, and those that it found in use. Whoever switches adds the new
// release for all nodes before it is current. What another node may use is not removed; that node
// takes it off its list at its next visit, if no process of it uses it any more. No clocks are
// compared, but to forget a node that no run has come to for kForgotten.
//
// Nodes are told apart by their host names. A node that mounts the prefix and that no run has ever
// been to is not known here.

#include <ctime>
#include <map>
#include <set>
#include <string>

#include "orchestrator/agent/folder.h"

namespace dsi::agent {

inline constexpr char kNodesName[] = "nodes.json";

class Nodes {
 public:
  static constexpr std::time_t kForgotten = 90 * 24 * 3600;

  // Never fails: of a file that is missing or damaged nothing is known.
  static Nodes read(const Folder& root);

  // False: any node may use anything.
  bool known() const { return known_; }
  bool may_be_used(const std::string& release) const;
  // Other nodes than this one have been here.
  bool is_shared() const;

  // This node uses these and no others. Nodes that have not been here for long are forgotten.
  void set_own(const std::set<std::string>& releases);
  // It is about to become current, for all nodes.
  void add_to_all(const std::string& release);

  // Only if something has changed.
  Result<void> write(const Folder& root);

 private:
  struct Node {
    std::string looked;  // As utc_now() says.
    std::set<std::string> may_use;
  };
  std::map<std::string, Node> nodes_;  // By host name.
  bool known_ = false;
  bool changed_ = false;
};

}  // namespace dsi::agent

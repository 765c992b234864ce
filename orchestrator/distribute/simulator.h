#pragma once

// A swarm that exists only as numbers, to see what the scheduler's decisions come to with thousands
// of hosts: how long everything takes, what leaves the head, what faults cost.
//
// The model. Chunks are cut into pieces; a node sends one piece at a time, in turn for every child
// that has something to get, so its uplink is shared evenly and never idle while anything can be
// sent. A piece takes its time on the sender's uplink, on the uplinks of both racks if they differ,
// and on the receiver's downlink, all at once (not one after the other), plus the latency. A child
// has a window of two chunks under way, so one that is slow does not hold up its siblings. A chunk
// is passed on when it is complete (it must be verified). Decisions and reports take the latency.
// What is not modelled: the nodes' processors, and the head's control traffic on its link.

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "orchestrator/distribute/scheduler.h"

namespace dsi::distribute {

struct SimulatedNode {
  double rate = 0;  // Bytes a second, in each direction; 0: as the swarm's.
  std::uint32_t rack = 0;
  bool can_serve = true;     // What the scheduler is told.
  bool is_reachable = true;  // What is true: connections to it are refused or not.
  bool can_connect = true;   // To other nodes.
  bool drops = false;        // What is not let through is not refused either.
  double joins = 0;          // Seconds after the start.
  double stands_still =
      std::numeric_limits<double>::infinity();            // From then on, connections stand.
  double dies = std::numeric_limits<double>::infinity();  // Its connections break.
};

struct SimulatedSwarm {
  SwarmShape shape;
  double rate = 12.5e6;        // Bytes a second, in each direction; also the head's.
  double rack_rate = 0;        // Of each rack's uplink, in each direction; 0: no limit.
  bool racks_are_told = true;  // To the scheduler.
  double latency = 0.0003;     // Seconds, one way
  double report_every = 0.2;
  double tick_every = 0.1;
  double silence = 2;  // After which a node complains of its parent.
  double connect_timeout = 1;
  double notice = 5;         // After which the head knows that a node stands still for good.
  std::uint32_t pieces = 4;  // Of a chunk
  double give_up = 3600;
  std::vector<SimulatedNode> nodes;  // PeerId is the position.
};

struct SimulatedRun {
  std::vector<double> finished;      // Seconds; infinity: never.
  std::uint64_t head_bytes = 0;      // Of chunks.
  std::uint64_t repeated_bytes = 0;  // Came to a node that had them.
  std::uint64_t reports = 0;
  std::uint64_t events = 0;     // Of the simulation.
  std::size_t first_depth = 0;  // Of the trees right after the start.
  SwarmNumbers numbers;         // At the end.
  std::vector<Remark> remarks;
};

// The same swarm gives the same run.
SimulatedRun simulate(const SimulatedSwarm& swarm);

// The least number of rounds in which `nodes` get `chunks`, if in a round every node and the head
// can send one chunk and receive one.
std::uint32_t fewest_rounds(std::size_t nodes, std::uint32_t chunks);

}  // namespace dsi::distribute

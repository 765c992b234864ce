// What the scheduler's decisions come to, in rounds of the simulation: no clock is looked at.

#include "orchestrator/distribute/simulator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace dsi::distribute {
namespace {

SimulatedSwarm swarm_of(std::size_t hosts, std::uint32_t chunks = 256) {
  SimulatedSwarm swarm;
  swarm.shape = {chunks, 64u << 10, choose_stripes(hosts, chunks)};
  swarm.nodes.resize(hosts);
  return swarm;
}

double round_of(const SimulatedSwarm& swarm) {
  return swarm.shape.chunk_size / swarm.rate;
}

// When the last of those had everything, over the fewest rounds.
double over_bound(const SimulatedSwarm& swarm, const SimulatedRun& run,
                  const std::function<bool(std::size_t)>& counts) {
  double last = 0;
  for (std::size_t i = 0; i < swarm.nodes.size(); ++i) {
    if (counts(i)) last = std::max(last, run.finished[i]);
  }
  return last / (round_of(swarm) * fewest_rounds(swarm.nodes.size(), swarm.shape.chunks));
}

bool everybody(std::size_t) {
  return true;
}

double copies(const SimulatedSwarm& swarm, const SimulatedRun& run) {
  return static_cast<double>(run.head_bytes) /
         (static_cast<double>(swarm.shape.chunks) * swarm.shape.chunk_size);
}

TEST(Simulation, Knows_the_fewest_rounds) {
  EXPECT_EQ(fewest_rounds(1, 1), 1u);
  EXPECT_EQ(fewest_rounds(1, 5), 5u);
  EXPECT_EQ(fewest_rounds(3, 1), 2u);
  EXPECT_EQ(fewest_rounds(4, 1), 3u);
  EXPECT_EQ(fewest_rounds(10'000, 256), 269u);
  EXPECT_EQ(fewest_rounds(0, 7), 0u);
}

TEST(Simulation, Never_beats_the_bound_and_is_near_it) {
  for (std::size_t hosts : {1, 2, 3, 4, 5, 7, 8, 16, 33, 64, 250}) {
    SimulatedSwarm swarm = swarm_of(hosts, 512);
    SimulatedRun run = simulate(swarm);
    double over = over_bound(swarm, run, everybody);
    EXPECT_GE(over, 1) << hosts;
    EXPECT_LE(over, 1.05) << hosts;
    EXPECT_DOUBLE_EQ(copies(swarm, run), 1) << hosts;
    EXPECT_EQ(run.repeated_bytes, 0u) << hosts;
    EXPECT_EQ(run.numbers.repairs, 0u) << hosts;
  }
}

TEST(Simulation, Is_the_same_every_time) {
  SimulatedSwarm swarm = swarm_of(50);
  swarm.nodes[5].dies = swarm.nodes[6].stands_still = 0.5;
  EXPECT_EQ(simulate(swarm).finished, simulate(swarm).finished);
}

TEST(Simulation, Racks_with_a_narrow_uplink_cost_little) {
  SimulatedSwarm swarm = swarm_of(200);
  for (std::uint32_t i = 0; i < 200; ++i) swarm.nodes[i].rack = i % 10;
  swarm.rack_rate = 3 * swarm.rate;  // For 20 hosts.
  EXPECT_LE(over_bound(swarm, simulate(swarm), everybody), 1.15);
  swarm.racks_are_told = false;
  EXPECT_GE(over_bound(swarm, simulate(swarm), everybody), 2);
}

TEST(Simulation, One_slow_host_holds_up_only_itself) {
  SimulatedSwarm swarm = swarm_of(32, 1024);
  for (std::size_t slow = 0; slow < 32; ++slow) {
    swarm.nodes[slow].rate = swarm.rate / 10;
    SimulatedRun run = simulate(swarm);
    EXPECT_LE(over_bound(swarm, run, [&](std::size_t i) { return i != slow; }), 1.2) << slow;
    EXPECT_LE(copies(swarm, run), 1.15) << slow;
    ASSERT_EQ(run.remarks.size(), 1u) << slow;
    EXPECT_EQ(run.remarks[0].peer, slow);
    swarm.nodes[slow].rate = 0;
  }
}

TEST(Simulation, Three_killed_hosts_cost_the_others_little) {
  for (std::size_t first = 0; first < 32; ++first) {
    SimulatedSwarm swarm = swarm_of(32, 512);
    for (std::size_t i : {first, first + 7, first + 17}) {
      swarm.nodes[i % 32].dies = 512 * round_of(swarm) / 3;
    }
    SimulatedRun run = simulate(swarm);
    auto lives = [&](std::size_t i) { return std::isinf(swarm.nodes[i].dies); };
    EXPECT_LE(over_bound(swarm, run, lives), 1.2) << first;
    EXPECT_LE(copies(swarm, run), 1.1) << first;
    EXPECT_EQ(run.numbers.members, 29u);
  }
}

TEST(Simulation, Hosts_that_fall_silent_cost_the_others_about_what_it_takes_to_notice) {
  SimulatedSwarm swarm = swarm_of(64, 1024);
  for (std::size_t i : {2, 30, 51}) swarm.nodes[i].stands_still = 1024 * round_of(swarm) / 3;
  SimulatedRun run = simulate(swarm);
  auto lives = [&](std::size_t i) { return std::isinf(swarm.nodes[i].stands_still); };
  EXPECT_LE(over_bound(swarm, run, lives), 1.25);
}

TEST(Simulation, Closed_ports_leave_a_star) {
  for (bool drops : {false, true}) {
    SimulatedSwarm swarm = swarm_of(16, 128);
    for (SimulatedNode& node : swarm.nodes) {
      node.is_reachable = false;
      node.drops = drops;
    }
    SimulatedRun run = simulate(swarm);
    EXPECT_NEAR(copies(swarm, run), 16, 0.01);
    double star = 16 * 128 * round_of(swarm);
    for (double finished : run.finished) EXPECT_LE(finished, 1.05 * star + 3);
  }
}

TEST(Simulation, A_third_that_cannot_be_reached_is_fed_by_the_others) {
  SimulatedSwarm swarm = swarm_of(90);
  for (std::size_t i = 0; i < 90; i += 3) swarm.nodes[i].is_reachable = false;
  SimulatedRun run = simulate(swarm);
  EXPECT_LE(copies(swarm, run), 3);
  EXPECT_LE(over_bound(swarm, run, everybody), 3);
}

TEST(Simulation, One_that_cannot_connect_is_fed_by_the_head) {
  SimulatedSwarm swarm = swarm_of(40);
  swarm.nodes[11].can_connect = false;
  SimulatedRun run = simulate(swarm);
  EXPECT_LE(copies(swarm, run), 2.05);
  EXPECT_LE(over_bound(swarm, run, everybody), 2.1);
}

TEST(Simulation, Hosts_that_come_late_get_everything_without_holding_up_the_first) {
  SimulatedSwarm swarm = swarm_of(64, 512);
  const double half = 256 * round_of(swarm);
  for (std::size_t i = 48; i < 64; ++i) swarm.nodes[i].joins = half;
  SimulatedRun run = simulate(swarm);
  EXPECT_LE(over_bound(swarm, run, [](std::size_t i) { return i < 48; }), 1.3);
  for (std::size_t i = 48; i < 64; ++i) EXPECT_LE(run.finished[i], 4 * half);
}

}  // namespace
}  // namespace dsi::distribute

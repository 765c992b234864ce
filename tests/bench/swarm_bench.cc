// What the scheduler's decisions come to, in the simulator: how long it takes until all healthy
// hosts have everything, over the least that is possible; what leaves the head; what it costs here.
//
//   swarm_bench --benchmark_counters_tabular=true
//
// bound    time / time of the fewest rounds (chunks - 1 + ceil(log2(hosts + 1))): the last healthy
//          host; median: the middle one
// copies   chunks that left the head / chunks
// ctrl_B   bytes that the head sent each host to steer it: assignments, as frames, with 64 bytes of
//          SSH and TCP around each
// told_B   bytes that it got from each host: reports, in the same way
// state_B  memory of the scheduler for each host
// Time     of the simulation; on a machine that does nothing else.

#include <benchmark/benchmark.h>
#include <malloc.h>

#include <algorithm>
#include <limits>
#include <random>

#include "orchestrator/agent/protocol.h"
#include "orchestrator/distribute/simulator.h"

namespace dsi::distribute {
namespace {

constexpr double kMbit = 1e6 / 8;
constexpr std::size_t kAround = 64;

bool is_healthy(const SimulatedSwarm& swarm, std::size_t i) {
  const SimulatedNode& node = swarm.nodes[i];
  return std::min(node.dies, node.stands_still) == std::numeric_limits<double>::infinity() &&
         (node.rate == 0 || node.rate >= swarm.rate);
}

// What a scheduler for so many hosts takes, right after the start.
double bytes_a_host(const SimulatedSwarm& swarm) {
  std::size_t before = mallinfo2().uordblks;
  Scheduler scheduler(swarm.shape);
  for (PeerId i = 0; i < swarm.nodes.size(); ++i) {
    scheduler.join({i, swarm.nodes[i].can_serve, {}, ""}, Time(0));
  }
  scheduler.start(Time(0));
  scheduler.take_assignments();
  std::size_t after = mallinfo2().uordblks;
  return static_cast<double>(after - before) / static_cast<double>(swarm.nodes.size());
}

void measure(benchmark::State& state, const SimulatedSwarm& swarm) {
  SimulatedRun run;
  for (auto _ : state) run = simulate(swarm);

  std::vector<double> times;
  for (std::size_t i = 0; i < swarm.nodes.size(); ++i) {
    if (is_healthy(swarm, i)) times.push_back(run.finished[i]);
  }
  std::sort(times.begin(), times.end());
  const auto hosts = static_cast<double>(swarm.nodes.size());
  const double whole = static_cast<double>(swarm.shape.chunks) * swarm.shape.chunk_size;
  const double bound =
      fewest_rounds(swarm.nodes.size(), swarm.shape.chunks) * (swarm.shape.chunk_size / swarm.rate);
  const protocol::Follow follow{3, 12345, 40123, {"10.111.112.113"}};
  const protocol::Have have{std::vector<std::uint32_t>(swarm.shape.stripes, 123), 123456789,
                            123456789};
  auto frames = [&](std::uint64_t n, std::size_t size) {
    return static_cast<double>(n) * static_cast<double>(size + kAround) / hosts;
  };
  state.counters["bound"] = times.back() / bound;
  state.counters["median"] = times[times.size() / 2] / bound;
  state.counters["copies"] = static_cast<double>(run.head_bytes) / whole;
  state.counters["ctrl_B"] =
      frames(run.numbers.assignments, protocol::json_frame("follow", follow).size());
  state.counters["told_B"] = frames(run.reports, protocol::json_frame("have", have).size());
  state.counters["state_B"] = bytes_a_host(swarm);
  state.counters["repairs"] = static_cast<double>(run.numbers.repairs);
  state.counters["depth"] = static_cast<double>(run.first_depth);
}

SimulatedSwarm swarm_of(std::size_t hosts, double rate, std::uint32_t chunks,
                        std::uint32_t chunk_size) {
  SimulatedSwarm swarm;
  swarm.shape = {chunks, chunk_size, choose_stripes(hosts, chunks)};
  swarm.rate = rate;
  swarm.nodes.resize(hosts);
  return swarm;
}

double seconds_of_one_copy(const SimulatedSwarm& swarm) {
  return static_cast<double>(swarm.shape.chunks) * swarm.shape.chunk_size / swarm.rate;
}

// The set-ups of tests/bench/fanout: 32 MiB or 16 MiB in 512 chunks.
SimulatedSwarm of_8() {
  return swarm_of(8, 100 * kMbit, 512, 64u << 10);
}
SimulatedSwarm of_32() {
  return swarm_of(32, 50 * kMbit, 512, 32u << 10);
}
SimulatedSwarm of_64() {
  return swarm_of(64, 25 * kMbit, 512, 32u << 10);
}

SimulatedSwarm of_32_one_slow() {
  SimulatedSwarm swarm = of_32();
  swarm.nodes[9].rate = swarm.rate / 10;
  return swarm;
}

SimulatedSwarm of_32_three(double SimulatedNode::*end) {
  SimulatedSwarm swarm = of_32();
  for (std::size_t i : {3, 11, 22}) swarm.nodes[i].*end = seconds_of_one_copy(swarm) / 3;
  return swarm;
}

SimulatedSwarm of_64_closed() {
  SimulatedSwarm swarm = of_64();
  for (SimulatedNode& node : swarm.nodes) node.is_reachable = false;
  return swarm;
}

constexpr std::uint32_t kRack = 40;

// Racks of 40 whose uplink is a quarter of what is behind it.
SimulatedSwarm of_10000(bool racks) {
  SimulatedSwarm swarm = swarm_of(10'000, 100 * kMbit, 256, 192u << 10);
  if (!racks) return swarm;
  swarm.rack_rate = kRack / 4.0 * swarm.rate;
  for (std::uint32_t i = 0; i < swarm.nodes.size(); ++i) swarm.nodes[i].rack = i / kRack;
  return swarm;
}

// In racks, links of one, two and a half and ten times the head's rate, 1 % at a tenth of it, 1 %
// that die at random moments.
SimulatedSwarm of_10000_with_faults(double SimulatedNode::*end, unsigned seed) {
  SimulatedSwarm swarm = of_10000(true);
  std::mt19937 random(seed);
  for (SimulatedNode& node : swarm.nodes) {
    const auto link = random() % 100;
    const auto fate = random() % 100;
    const double moment = static_cast<double>(random() % 1000) / 1000;
    node.rate = swarm.rate * (link < 70 ? 1 : link < 90 ? 2.5 : 10);
    if (fate == 0) node.rate = swarm.rate / 10;
    if (fate == 1) node.*end = moment * seconds_of_one_copy(swarm);
  }
  return swarm;
}

void add(const char* name, const SimulatedSwarm& swarm) {
  benchmark::RegisterBenchmark(name, [swarm](benchmark::State& state) { measure(state, swarm); })
      ->Iterations(1)
      ->Unit(benchmark::kSecond);
}

const bool added = [] {
  add("8_hosts", of_8());
  add("32_hosts", of_32());
  add("32_hosts/one_at_a_tenth", of_32_one_slow());
  add("32_hosts/three_killed", of_32_three(&SimulatedNode::dies));
  add("32_hosts/three_stand_still", of_32_three(&SimulatedNode::stands_still));
  add("64_hosts", of_64());
  add("64_hosts/ports_closed", of_64_closed());
  add("10000_hosts", of_10000(false));
  add("10000_hosts/racks", of_10000(true));
  add("10000_hosts/faults_dying", of_10000_with_faults(&SimulatedNode::dies, 1));
  add("10000_hosts/faults_standing_still", of_10000_with_faults(&SimulatedNode::stands_still, 1));
  return true;
}();

}  // namespace
}  // namespace dsi::distribute

#include "orchestrator/distribute/simulator.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <deque>
#include <queue>

namespace dsi::distribute {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr std::uint32_t kNone = ~0u;
constexpr std::uint32_t kNoRack = ~0u;

enum class What : std::uint32_t {
  kUplinkFree,  // Node
  kArrive,      // Stream: one piece
  kAssigned,    // Stream: the child hears of it.
  kConnected,   // Stream
  kFault,       // Stream, Fault
  kReport,      // Node
  kJoin,        // Node
  kDie,         // Node
  kStandStill,  // Node
  kNoticed,     // Node
  kTick,
};

struct Event {
  double time = 0;
  std::uint64_t order = 0;  // Those of one moment happen in the order in which they were made.
  What what = What::kTick;
  std::uint32_t a = 0;
  std::uint32_t b = 0;

  bool operator>(const Event& other) const {
    return time != other.time ? time > other.time : order > other.order;
  }
};

// A stripe on its way from a parent to a child.
struct Stream {
  std::uint32_t parent = 0;
  std::uint32_t child = 0;
  std::uint32_t stripe = 0;
  bool open = false;            // The child follows it.
  bool sends = false;           // The parent knows.
  bool queued = false;          // In the parent's list of those that can go on.
  std::uint32_t next = 0;       // Chunk to be sent.
  std::uint32_t piece = 0;      // Of it
  std::uint32_t arriving = 0;   // Chunk
  std::uint32_t arrived = 0;    // Pieces of it
  std::uint32_t under_way = 0;  // Pieces
  double since = 0;
};

struct Machine {
  double rate = 0;
  std::uint32_t rack = kNoRack;
  bool there = false;
  bool dead = false;  // Or stands still.
  bool gone = false;  // Its connections are broken.
  bool sending = false;
  bool changed = false;  // Since the last report.
  std::uint32_t unfinished = 0;
  double downlink_until = 0;
  std::vector<std::uint32_t> counts;
  std::vector<std::uint32_t> from;  // Stream by stripe.
  std::vector<double> heard;        // When something came, by stripe.
  std::vector<std::uint32_t> to;    // Streams
  std::deque<std::uint32_t> ready;  // Streams that can go on.
};

struct RackLink {
  double up_until = 0;
  double down_until = 0;
};

class Simulation {
 public:
  explicit Simulation(const SimulatedSwarm& swarm)
      : swarm_(swarm),
        head_(static_cast<std::uint32_t>(swarm.nodes.size())),
        piece_bytes_(static_cast<double>(swarm.shape.chunk_size) / swarm.pieces),
        scheduler_(swarm.shape) {}

  SimulatedRun run();

 private:
  std::uint32_t chunks_in(std::uint32_t stripe) const {
    return (swarm_.shape.chunks + swarm_.shape.stripes - 1 - stripe) / swarm_.shape.stripes;
  }
  bool has(std::uint32_t machine, std::uint32_t stripe, std::uint32_t chunk) const {
    return machine == head_ ? chunk < chunks_in(stripe) : chunk < machines_[machine].counts[stripe];
  }
  void at(double time, What what, std::uint32_t a = 0, std::uint32_t b = 0) {
    events_.push({time, order_++, what, a, b});
  }
  Time time() const { return Time(now_); }

  void set_up();
  void join(std::uint32_t node);
  void handle(const Event& event);
  void obey();
  void assigned(std::uint32_t stream);
  void connected(std::uint32_t stream);
  void close(std::uint32_t stream);
  void go_on(std::uint32_t stream);
  void send(std::uint32_t machine);
  double carry(const Machine& from, Machine& to);
  void arrive(std::uint32_t stream);
  void report(std::uint32_t node);
  void tell(std::uint32_t node);
  void end(std::uint32_t node, bool breaks);

  const SimulatedSwarm& swarm_;
  const std::uint32_t head_;
  const double piece_bytes_;
  Scheduler scheduler_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::uint64_t order_ = 0;
  double now_ = 0;
  std::vector<Machine> machines_;
  std::vector<RackLink> racks_;
  std::vector<Stream> streams_;
  std::size_t waited_for_ = 0;  // Nodes that are alive and have not everything.
  SimulatedRun run_;
};

SimulatedRun Simulation::run() {
  set_up();
  while (!events_.empty() && waited_for_ > 0 && events_.top().time < swarm_.give_up) {
    Event event = events_.top();
    events_.pop();
    now_ = event.time;
    ++run_.events;
    handle(event);
  }
  run_.numbers = scheduler_.numbers();
  return std::move(run_);
}

void Simulation::set_up() {
  machines_.resize(swarm_.nodes.size() + 1);
  machines_[head_].rate = swarm_.rate;
  machines_[head_].there = true;
  run_.finished.assign(swarm_.nodes.size(), kNever);
  std::uint32_t racks = 0;
  for (std::uint32_t i = 0; i < head_; ++i) {
    const SimulatedNode& node = swarm_.nodes[i];
    Machine& machine = machines_[i];
    machine.rate = node.rate > 0 ? node.rate : swarm_.rate;
    machine.rack = node.rack;
    machine.counts.assign(swarm_.shape.stripes, 0);
    machine.from.assign(swarm_.shape.stripes, kNone);
    machine.heard.assign(swarm_.shape.stripes, 0);
    for (std::uint32_t s = 0; s < swarm_.shape.stripes; ++s) {
      if (chunks_in(s) > 0) ++machine.unfinished;
    }
    racks = std::max(racks, node.rack + 1);
    if (machine.unfinished > 0) ++waited_for_;
    if (node.joins > 0) {
      at(node.joins, What::kJoin, i);
    } else {
      join(i);
    }
    if (node.dies < kNever) at(node.dies, What::kDie, i);
    if (node.stands_still < kNever) at(node.stands_still, What::kStandStill, i);
  }
  racks_.resize(racks);
  scheduler_.start(time());
  obey();
  run_.first_depth = scheduler_.numbers().depth;
  at(swarm_.tick_every, What::kTick);
}

void Simulation::join(std::uint32_t node) {
  if (machines_[node].dead) return;
  machines_[node].there = true;
  std::string rack = swarm_.racks_are_told ? fmt::format("{}", swarm_.nodes[node].rack) : "";
  scheduler_.join({node, swarm_.nodes[node].can_serve, {}, rack}, time());
  // Not all in one moment.
  double phase = static_cast<double>(node * 2654435761u % 1024) / 1024;
  at(now_ + swarm_.report_every * (0.5 + phase), What::kReport, node);
}

void Simulation::handle(const Event& event) {
  switch (event.what) {
    case What::kUplinkFree:
      machines_[event.a].sending = false;
      return send(event.a);
    case What::kArrive:
      return arrive(event.a);
    case What::kAssigned:
      return assigned(event.a);
    case What::kConnected:
      return connected(event.a);
    case What::kFault: {
      const Stream& stream = streams_[event.a];
      if (!stream.open || machines_[stream.child].dead) return;
      PeerId parent = stream.parent == head_ ? kHead : stream.parent;
      scheduler_.fault(stream.child, parent, stream.stripe, static_cast<Fault>(event.b), time());
      return obey();
    }
    case What::kReport:
      return report(event.a);
    case What::kJoin:
      join(event.a);
      return obey();
    case What::kDie:
      return end(event.a, true);
    case What::kStandStill:
      return end(event.a, false);
    case What::kNoticed:
      machines_[event.a].gone = true;
      scheduler_.leave(event.a, time());
      return obey();
    case What::kTick:
      scheduler_.tick(time());
      obey();
      return at(now_ + swarm_.tick_every, What::kTick);
  }
}

void Simulation::obey() {
  for (const Assignment& a : scheduler_.take_assignments()) {
    Stream stream;
    stream.parent = a.parent == kHead ? head_ : a.parent;
    stream.child = a.child;
    stream.stripe = a.stripe;
    streams_.push_back(stream);
    at(now_ + swarm_.latency, What::kAssigned, static_cast<std::uint32_t>(streams_.size() - 1));
  }
  for (Remark& remark : scheduler_.take_remarks()) run_.remarks.push_back(std::move(remark));
}

void Simulation::assigned(std::uint32_t id) {
  Stream& stream = streams_[id];
  Machine& child = machines_[stream.child];
  if (child.dead) return;
  std::uint32_t old = child.from[stream.stripe];
  if (old != kNone && streams_[old].open) {
    if (streams_[old].parent == stream.parent && streams_[old].sends) return;
    close(old);
  }
  child.from[stream.stripe] = id;
  child.heard[stream.stripe] = now_;
  stream.open = true;
  stream.since = now_;
  if (stream.parent == head_) return at(now_ + swarm_.latency, What::kConnected, id);
  const SimulatedNode& from = swarm_.nodes[stream.parent];
  const SimulatedNode& to = swarm_.nodes[stream.child];
  const Machine& parent = machines_[stream.parent];
  if (from.is_reachable && to.can_connect && !parent.dead) {
    return at(now_ + 2 * swarm_.latency, What::kConnected, id);
  }
  bool waits = parent.dead ? !parent.gone : from.drops || to.drops;
  at(now_ + (waits ? swarm_.connect_timeout : 2 * swarm_.latency), What::kFault, id,
     static_cast<std::uint32_t>(Fault::kUnreachable));
}

void Simulation::connected(std::uint32_t id) {
  Stream& stream = streams_[id];
  if (!stream.open || machines_[stream.child].dead || machines_[stream.parent].dead) return;
  stream.sends = true;
  stream.next = stream.arriving = machines_[stream.child].counts[stream.stripe];
  machines_[stream.parent].to.push_back(id);
  go_on(id);
}

void Simulation::close(std::uint32_t id) {
  streams_[id].open = false;
  if (!streams_[id].sends) return;
  streams_[id].sends = false;
  std::vector<std::uint32_t>& to = machines_[streams_[id].parent].to;
  to.erase(std::find(to.begin(), to.end(), id));
}

// Queues the stream at its parent if there is anything to send.
void Simulation::go_on(std::uint32_t id) {
  Stream& stream = streams_[id];
  Machine& parent = machines_[stream.parent];
  if (!stream.sends || stream.queued || parent.dead) return;
  if (stream.under_way >= 2 * swarm_.pieces) return;
  if (!has(stream.parent, stream.stripe, stream.next)) return;
  stream.queued = true;
  parent.ready.push_back(id);
  if (!parent.sending) send(stream.parent);
}

void Simulation::send(std::uint32_t id) {
  Machine& machine = machines_[id];
  while (!machine.ready.empty() && !machine.sending && !machine.dead) {
    std::uint32_t which = machine.ready.front();
    machine.ready.pop_front();
    Stream& stream = streams_[which];
    stream.queued = false;
    if (!stream.sends) continue;
    machine.sending = true;
    ++stream.under_way;
    if (++stream.piece == swarm_.pieces) {
      stream.piece = 0;
      ++stream.next;
    }
    if (id == head_) run_.head_bytes += static_cast<std::uint64_t>(piece_bytes_);
    at(now_ + piece_bytes_ / machine.rate, What::kUplinkFree, id);
    at(carry(machine, machines_[stream.child]), What::kArrive, which);
    go_on(which);
  }
}

// When a piece that leaves now is there.
double Simulation::carry(const Machine& from, Machine& to) {
  double there = now_ + piece_bytes_ / from.rate + swarm_.latency;
  auto pass = [&](double& until, double rate) {
    until = std::max(until, now_ + swarm_.latency) + piece_bytes_ / rate;
    there = std::max(there, until);
  };
  if (swarm_.rack_rate > 0 && from.rack != to.rack) {
    if (from.rack != kNoRack) pass(racks_[from.rack].up_until, swarm_.rack_rate);
    pass(racks_[to.rack].down_until, swarm_.rack_rate);
  }
  pass(to.downlink_until, to.rate);
  return there;
}

void Simulation::arrive(std::uint32_t id) {
  Stream& stream = streams_[id];
  Machine& child = machines_[stream.child];
  if (child.dead) return;  // Its window fills up, and that is all that the parent sees.
  --stream.under_way;
  if (!stream.open) return;
  child.heard[stream.stripe] = now_;
  if (++stream.arrived == swarm_.pieces) {
    stream.arrived = 0;
    std::uint32_t& count = child.counts[stream.stripe];
    if (stream.arriving++ < count) {
      run_.repeated_bytes += swarm_.shape.chunk_size;
    } else {
      ++count;
      child.changed = true;
      for (std::uint32_t to : child.to) {
        if (streams_[to].stripe == stream.stripe) go_on(to);
      }
      if (count == chunks_in(stream.stripe)) {
        std::uint32_t node = stream.child;
        close(id);
        if (--child.unfinished == 0) {
          run_.finished[node] = now_;
          --waited_for_;
          tell(node);
        }
        return;
      }
    }
  }
  go_on(id);
}

void Simulation::tell(std::uint32_t node) {
  Machine& machine = machines_[node];
  machine.changed = false;
  ++run_.reports;
  scheduler_.have(node, machine.counts, time());
  obey();
}

void Simulation::report(std::uint32_t node) {
  Machine& machine = machines_[node];
  if (machine.dead) return;
  if (machine.changed) tell(node);
  if (machine.unfinished == 0) return;
  for (std::uint32_t s = 0; s < swarm_.shape.stripes; ++s) {
    std::uint32_t from = machine.from[s];
    if (from == kNone || !streams_[from].open || !streams_[from].sends) continue;
    if (now_ - machine.heard[s] < swarm_.silence) continue;
    machine.heard[s] = now_;
    at(now_ + swarm_.latency, What::kFault, from, static_cast<std::uint32_t>(Fault::kSilent));
  }
  at(now_ + swarm_.report_every, What::kReport, node);
}

void Simulation::end(std::uint32_t node, bool breaks) {
  Machine& machine = machines_[node];
  if (machine.dead) return;
  machine.dead = true;
  if (machine.unfinished > 0) --waited_for_;
  if (!breaks) return at(now_ + swarm_.notice, What::kNoticed, node);
  machine.gone = true;
  for (std::uint32_t from : machine.from) {
    if (from != kNone && streams_[from].open) close(from);
  }
  for (std::uint32_t to : machine.to) {
    at(now_ + 2 * swarm_.latency, What::kFault, to, static_cast<std::uint32_t>(Fault::kClosed));
  }
  at(now_ + 2 * swarm_.latency, What::kNoticed, node);
}

}  // namespace

SimulatedRun simulate(const SimulatedSwarm& swarm) {
  return Simulation(swarm).run();
}

std::uint32_t fewest_rounds(std::size_t nodes, std::uint32_t chunks) {
  if (nodes == 0 || chunks == 0) return 0;
  // ceil(log2(nodes + 1)): the head has the chunks already.
  return chunks - 1 + static_cast<std::uint32_t>(std::bit_width(nodes));
}

}  // namespace dsi::distribute

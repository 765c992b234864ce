#include "orchestrator/distribute/swarm.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

namespace dsi::distribute {

namespace {

// Bytes [begin, end) of the objects laid one after the other.
Result<std::string> read_range(const std::vector<ObjectFile>& objects,
                               const std::vector<UniqueFd>& files, std::uint64_t begin,
                               std::uint64_t end) {
  std::string bytes;
  bytes.reserve(end - begin);
  std::uint64_t at = 0;  // Where the object begins in the stream.
  for (std::size_t i = 0; i < objects.size() && at < end; ++i) {
    std::uint64_t size = objects[i].object.wire_size;
    std::uint64_t from = std::max(begin, at);
    std::uint64_t to = std::min(end, at + size);
    while (from < to) {
      std::size_t old = bytes.size();
      bytes.resize(old + (to - from));
      ssize_t n =
          ::pread(files[i].get(), bytes.data() + old, to - from, static_cast<off_t>(from - at));
      if (n < 0 && errno == EINTR) n = 0;
      if (n < 0) return fail_errno(errno, fmt::format("cannot read {}", objects[i].path.string()));
      bytes.resize(old + static_cast<std::size_t>(n));
      from += static_cast<std::uint64_t>(n);
      if (n == 0) return fail("{} was cut short while it was sent", objects[i].path.string());
    }
    at += size;
  }
  return bytes;
}

std::vector<bool> bits_of(const std::string& hex, std::size_t size) {
  std::vector<bool> bits(size);
  for (std::size_t i = 0; i < hex.size(); ++i) {
    char c = hex[i];
    int value = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : 0;
    // Two digits a byte, the high half first; chunk 8i+j is bit j of byte i.
    std::size_t first = i / 2 * 8 + (i % 2 == 0 ? 4 : 0);
    for (std::size_t j = 0; j < 4; ++j) {
      if (first + j < size && (value >> j & 1) != 0) bits[first + j] = true;
    }
  }
  return bits;
}

Fault fault_of(const std::string& kind) {
  if (kind == "unreachable" || kind == "refused") return Fault::kUnreachable;
  if (kind == "silent") return Fault::kSilent;
  if (kind == "corrupt") return Fault::kCorrupt;
  return Fault::kClosed;
}

}  // namespace

Time Swarm::now() {
  return std::chrono::steady_clock::now().time_since_epoch();
}

Swarm::Swarm(ChunkIndex index, std::vector<ObjectFile> objects)
    : index_(std::move(index)),
      objects_(std::move(objects)),
      encoded_(encode(index_)),
      digest_(to_hex(hash_of(encoded_))),
      stream_size_(index_.stream_size()) {
  state_.with([&](State& state) {
    state.scheduler =
        std::make_unique<Scheduler>(SwarmShape{index_.chunks(), index_.chunk_size, index_.stripes});
  });
}

Result<std::unique_ptr<Swarm>> Swarm::make(const std::vector<ObjectFile>& objects,
                                           std::size_t expected) {
  ChunkIndex index;
  for (const ObjectFile& object : objects) index.objects.push_back(object.object);
  std::uint64_t size = index.stream_size();
  index.chunk_size = choose_chunk_size(size);
  auto chunks = static_cast<std::uint32_t>((size + index.chunk_size - 1) / index.chunk_size);
  index.stripes = choose_stripes(expected, chunks);
  std::vector<UniqueFd> files;
  for (const ObjectFile& object : objects) {
    files.emplace_back(::open(object.path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!files.back())
      return fail_errno(errno, fmt::format("cannot read {}", object.path.string()));
  }
  for (std::uint32_t i = 0; i < chunks; ++i) {
    std::uint64_t begin = static_cast<std::uint64_t>(i) * index.chunk_size;
    DSI_TRY(std::string bytes,
            read_range(objects, files, begin, std::min(size, begin + index.chunk_size)));
    index.hashes.push_back(hash_of(bytes));
  }
  std::unique_ptr<Swarm> swarm(new Swarm(std::move(index), objects));
  swarm->files_ = std::move(files);
  swarm->state_.with([&](State& state) {
    state.story.stream_bytes = size;
    state.story.chunk_size = swarm->index_.chunk_size;
    state.story.chunks = chunks;
    state.story.stripes = swarm->index_.stripes;
  });
  return swarm;
}

Result<std::string> Swarm::read_chunk(std::uint32_t number) const {
  std::uint64_t begin = static_cast<std::uint64_t>(number) * index_.chunk_size;
  return read_range(objects_, files_, begin, begin + index_.size_of(number));
}

void Swarm::enroll(PeerId peer, const protocol::Listening& listening) {
  state_.with([&](State& state) {
    Member member;
    member.wake.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    member.listening = listening;
    member.here.resize(index_.chunks());
    member.counts.resize(index_.stripes);
    state.members[peer] = std::move(member);
    state.story.hosts = state.members.size();
  });
}

void Swarm::start_if_ready(State& state) const {
  constexpr Time kPatience{0.4};
  if (state.started || !state.first_join) return;
  bool all = std::all_of(state.members.begin(), state.members.end(),
                         [](const auto& row) { return row.second.joined || row.second.gone; });
  if (!all && now() - *state.first_join < kPatience) return;
  state.started = true;
  state.scheduler->start(now());
}

int Swarm::wake(PeerId peer) const {
  return state_.with([&](State& state) { return state.members.at(peer).wake.get(); });
}

// What other nodes have sent is counted and not known by name. Chunks of a stripe are sent in their
// order, so it is taken for the first ones of those that the head knows nothing of; where that is
// wrong next_chunk() finds out.
Swarm::Member::Feed Swarm::begin_feed(const Member& child, std::uint32_t stripe) const {
  std::uint32_t known = 0;
  for (std::uint32_t i = stripe; i < index_.chunks(); i += index_.stripes) {
    if (child.here[i]) ++known;
  }
  std::uint32_t counted = child.counts[stripe];
  std::uint32_t unknown = counted > known ? counted - known : 0;
  Member::Feed feed{stripe, std::max(counted, known)};
  while (feed.next < index_.chunks() && (child.here[feed.next] || unknown > 0)) {
    if (!child.here[feed.next]) --unknown;
    feed.next += index_.stripes;
  }
  return feed;
}

void Swarm::act(State& state) {
  for (const Assignment& assignment : state.scheduler->take_assignments()) {
    auto at = state.members.find(assignment.child);
    if (at == state.members.end() || at->second.gone) continue;
    Member& child = at->second;
    protocol::Follow follow;
    follow.stripe = assignment.stripe;
    if (assignment.parent == kHead) {
      child.fed[assignment.stripe] = begin_feed(child, assignment.stripe);
    } else {
      const protocol::Listening& parent = state.members.at(assignment.parent).listening;
      child.fed.erase(assignment.stripe);
      follow.parent = assignment.parent;
      follow.port = parent.port;
      follow.addresses = parent.addresses;
    }
    // What was not said yet about this stripe is out of date.
    std::erase_if(child.follow,
                  [&](const protocol::Follow& old) { return old.stripe == assignment.stripe; });
    child.follow.push_back(std::move(follow));
    ::eventfd_write(child.wake.get(), 1);
  }
  for (Remark& remark : state.scheduler->take_remarks()) state.remarks.push_back(std::move(remark));
  state.story.depth = std::max(state.story.depth, state.scheduler->numbers().depth);
}

// The lowest chunk of those that the head is to send. When all of a stripe is there or on its way
// by the count and nothing has come for a while nevertheless, the count was misleading: then every
// chunk that the head has not sent itself goes there once.
std::optional<std::uint32_t> Swarm::next_chunk(Member& member) const {
  constexpr Time kPatience{1.0};
  std::uint32_t best = index_.chunks();
  Member::Feed* from = nullptr;
  for (auto& [stripe, feed] : member.fed) {
    if (member.counts[stripe] >= index_.chunks_in(stripe)) continue;
    if (feed.sure >= index_.chunks_in(stripe)) {
      if (now() - member.progress < kPatience) continue;
      feed.next = stripe;
    }
    while (feed.next < index_.chunks() && member.here[feed.next]) feed.next += index_.stripes;
    if (feed.next >= best) continue;
    best = feed.next;
    from = &feed;
  }
  if (from == nullptr) return std::nullopt;
  member.here[best] = true;
  from->next = best + index_.stripes;
  ++from->sure;
  return best;
}

Step Swarm::next(PeerId peer) {
  return state_.with([&](State& state) {
    Step step;
    Member& member = state.members.at(peer);
    eventfd_t count = 0;
    ::eventfd_read(member.wake.get(), &count);
    if (!member.joined || member.complete) return step;
    step.follow = std::move(member.follow);
    member.follow.clear();
    if (member.fed.empty()) return step;
    step.chunk = next_chunk(member);
    if (step.chunk) ++state.story.chunks_from_head;
    step.index = !member.has_index;
    member.has_index = true;
    return step;
  });
}

void Swarm::count(Member& member, const std::vector<std::uint32_t>& counts) const {
  std::uint64_t chunks = 0;
  for (std::size_t stripe = 0; stripe < counts.size() && stripe < member.counts.size(); ++stripe) {
    if (counts[stripe] > member.counts[stripe]) member.progress = now();
    member.counts[stripe] = counts[stripe];
    chunks += counts[stripe];
  }
  // The last chunk may be shorter; when all are there the sum is exact.
  member.bytes = chunks >= index_.chunks() ? stream_size_ : chunks * index_.chunk_size;
}

void Swarm::joined(PeerId peer, const protocol::Joined& joined) {
  state_.with([&](State& state) {
    Member& member = state.members.at(peer);
    member.joined = true;
    member.here = bits_of(joined.have, index_.chunks());
    std::vector<std::uint32_t> counts(index_.stripes);
    for (std::uint32_t i = 0; i < index_.chunks(); ++i) {
      if (member.here[i]) ++counts[i % index_.stripes];
    }
    count(member, counts);
    Newcomer newcomer;
    newcomer.peer = peer;
    newcomer.can_serve = member.listening.port != 0;
    newcomer.counts = std::move(counts);
    state.scheduler->join(newcomer, now());
    if (!state.first_join) state.first_join = now();
    start_if_ready(state);
    act(state);
  });
}

bool Swarm::have(PeerId peer, const protocol::Have& have) {
  return state_.with([&](State& state) {
    Member& member = state.members.at(peer);
    if (have.counts.size() != member.counts.size()) return false;
    std::uint64_t before = member.bytes;
    count(member, have.counts);
    member.received = have.received;
    state.scheduler->have(peer, member.counts, now());
    act(state);
    return member.bytes > before;
  });
}

void Swarm::fault(PeerId peer, const protocol::PeerFault& fault) {
  state_.with([&](State& state) {
    // The head's own stripes have no fault that another parent would heal.
    if (fault.peer < 0) return;
    state.scheduler->fault(peer, static_cast<PeerId>(fault.peer), fault.stripe,
                           fault_of(fault.kind), now());
    act(state);
  });
}

void Swarm::completed(PeerId peer) {
  state_.with([&](State& state) {
    Member& member = state.members.at(peer);
    std::vector<std::uint32_t> counts(index_.stripes);
    for (std::uint32_t s = 0; s < index_.stripes; ++s) counts[s] = index_.chunks_in(s);
    count(member, counts);
    member.complete = true;
    state.scheduler->have(peer, counts, now());
    act(state);
  });
}

void Swarm::leave(PeerId peer) {
  state_.with([&](State& state) {
    auto at = state.members.find(peer);
    if (at == state.members.end() || at->second.gone) return;
    at->second.gone = true;
    state.scheduler->leave(peer, now());
    start_if_ready(state);
    act(state);
  });
}

void Swarm::tick() {
  state_.with([&](State& state) {
    start_if_ready(state);
    if (!state.started) return;
    state.scheduler->tick(now());
    act(state);
    // What is fed twice becomes due by time alone.
    for (auto& [peer, member] : state.members) {
      if (!member.fed.empty() && !member.complete) ::eventfd_write(member.wake.get(), 1);
    }
  });
}

std::uint64_t Swarm::bytes_done() const {
  return state_.with([](const State& state) {
    std::uint64_t bytes = 0;
    for (const auto& [peer, member] : state.members) {
      if (!member.gone) bytes += member.bytes;
    }
    return bytes;
  });
}

std::uint64_t Swarm::bytes_wanted() const {
  return state_.with([&](const State& state) {
    std::uint64_t bytes = 0;
    for (const auto& [peer, member] : state.members) {
      if (!member.gone) bytes += stream_size_;
    }
    return bytes;
  });
}

SwarmStory Swarm::story() const {
  return state_.with([](const State& state) {
    SwarmStory story = state.story;
    SwarmNumbers numbers = state.scheduler->numbers();
    story.assignments = numbers.assignments;
    story.repairs = numbers.repairs;
    for (const auto& [peer, member] : state.members) story.bytes_between_nodes += member.received;
    return story;
  });
}

std::vector<Remark> Swarm::take_remarks() {
  return state_.with([](State& state) { return std::exchange(state.remarks, {}); });
}

}  // namespace dsi::distribute

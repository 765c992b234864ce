#include "orchestrator/agent/upstream.h"

#include <sys/socket.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "orchestrator/agent/listener.h"

namespace dsi::agent {

namespace {

// Within one rack an answer takes less than a millisecond; a packet that is lost is sent again
// after a second.
constexpr std::chrono::milliseconds kConnectTime{1500};
// Nothing new from who should send: look whether the kernel waits for a full load (peer_link.cc).
constexpr std::chrono::seconds kQuiet{1};
constexpr int kReceivesInARow = 4;

}  // namespace

void Upstream::follow(const protocol::Follow& follow, Moment now) {
  for (auto& [id, parent] : parents_) {
    if (id != follow.parent) unfollow(parent, follow.stripe);
  }
  if (follow.parent >= 0 && state_.stream && state_.key) {
    auto [at, is_new] = parents_.try_emplace(follow.parent);
    Parent& parent = at->second;
    parent.stripes.insert(follow.stripe);
    if (is_new) {
      parent.id = follow.parent;
      parent.port = follow.port;
      parent.addresses = follow.addresses;
      connect_next(parent, now);
    } else {
      ask(parent, now);
    }
  }
  sweep();
}

void Upstream::unfollow(Parent& parent, std::uint32_t stripe) {
  if (parent.stripes.erase(stripe) == 0) return;
  if (parent.stripes.empty()) {
    parent.gone = true;
  } else if (parent.asked.erase(stripe) > 0) {
    say(parent, RecordType::kUnfollow, number_bytes(stripe), Clock::now());
  }
}

void Upstream::connect_next(Parent& parent, Moment now) {
  parent.connecting.reset();
  parent.link.reset();
  parent.slot = 0;
  parent.said_hello = parent.greeted = false;
  while (parent.next_address < parent.addresses.size()) {
    const std::string& address = parent.addresses[parent.next_address++];
    auto fd = start_connecting(address, parent.port);
    if (fd) {
      parent.connecting = *std::move(fd);
      parent.heard = now;
      return;
    }
    if (parent.kind.empty() || parent.kind == "unreachable") {
      parent.kind = "unreachable";
      parent.detail = fd.error().what;
      if (!fd.error().help.empty()) parent.detail += ": " + fd.error().help;
    }
  }
  give_up(parent, parent.kind.empty() ? "unreachable" : parent.kind,
          parent.kind.empty() ? "it has no address" : parent.detail);
}

// This address is not the right one; the next may be.
void Upstream::failed_here(Parent& parent, std::string kind, std::string detail, Moment now) {
  // Who answered but refused says more than who did not answer.
  if (parent.kind.empty() || parent.kind == "unreachable") {
    parent.kind = std::move(kind);
    parent.detail = fmt::format("{} port {}: {}", parent.addresses[parent.next_address - 1],
                                parent.port, detail);
  }
  connect_next(parent, now);
}

void Upstream::give_up(Parent& parent, const std::string& kind, const std::string& detail) {
  for (std::uint32_t stripe : parent.stripes) faults_.push_back({parent.id, stripe, kind, detail});
  parent.gone = true;
}

void Upstream::finish_connecting(Parent& parent, Moment now) {
  int error = 0;
  socklen_t size = sizeof error;
  if (::getsockopt(parent.connecting.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
    error = errno;
  }
  if (error != 0) {
    return failed_here(parent, "unreachable", std::generic_category().message(error), now);
  }
  parent.link.emplace(std::move(parent.connecting), PeerLink::Role::kClient, *state_.key);
  parent.link->flush();
  parent.heard = now;
}

void Upstream::say(Parent& parent, RecordType type, std::string_view payload, Moment now) {
  parent.link->put(type, payload);
  parent.link->flush();
  parent.said = now;
}

// Tells a parent what is wanted of it. Without the index nothing that it sends could be judged, so
// that is asked for first; of all of them, for each may wait for it itself, and two that wait for
// each other (each is the other's parent for some stripe) would wait for ever.
void Upstream::ask(Parent& parent, Moment now) {
  if (!parent.greeted || parent.gone) return;
  if (!state_.has_index()) {
    if (parent.index_asked) return;
    parent.index_asked = true;
    parent.index.clear();
    return say(parent, RecordType::kAskIndex, {}, now);
  }
  for (std::uint32_t stripe : parent.stripes) {
    if (stripe >= state_.stream->index().stripes || !parent.asked.insert(stripe).second) continue;
    say(parent, RecordType::kFollow,
        number_bytes(stripe) + pack_bits(state_.stream->have_of(stripe)), now);
  }
}

void Upstream::index_came(Moment now) {
  for (auto& [id, parent] : parents_) {
    parent.index_asked = false;
    ask(parent, now);
  }
}

void Upstream::take_index(Parent& parent, std::string_view bytes, Moment now) {
  if (state_.has_index()) return;  // It came from somebody else meanwhile.
  if (!parent.index_asked || bytes.size() > state_.stream->index_size() - parent.index.size()) {
    return give_up(parent, "corrupt", "it sent an index that nobody asked for");
  }
  parent.index += bytes;
  if (parent.index.size() < state_.stream->index_size()) return;
  auto taken = state_.stream->take_index(parent.index);
  if (!taken) {
    disk_error_ = taken.error();
  } else if (!*taken) {
    give_up(parent, "corrupt", "its index of the swarm is not the right one");
  } else {
    index_came(now);
  }
}

void Upstream::take_chunk(Parent& parent, std::string_view payload) {
  if (payload.size() < 4 || !state_.has_index()) {
    return give_up(parent, "corrupt", "it sent a chunk that cannot be one");
  }
  std::uint32_t number = number_at(payload);
  auto stored = state_.stream->store(number, payload.substr(4));
  if (!stored) {
    disk_error_ = stored.error();
  } else if (*stored == Incoming::Stored::kWrong) {
    give_up(parent, "corrupt", fmt::format("its chunk {} is not what it should be", number));
  } else {
    state_.received += payload.size() - 4;
  }
}

void Upstream::obey(Parent& parent, const Record& record, Moment now) {
  if (record.type == RecordType::kPing) return;
  if (!parent.greeted) {
    std::string expected = number_bytes(static_cast<std::uint32_t>(parent.id));
    std::string hello = state_.hello().replace(0, expected.size(), expected);
    if (record.type != RecordType::kHello || record.payload.size() != hello.size() ||
        record.payload.substr(4) != std::string_view(hello).substr(4)) {
      return failed_here(parent, "refused", "it is in another swarm", now);
    }
    // A private address may lead to another node than it does where it came from.
    if (record.payload != hello) {
      return failed_here(parent, "unreachable", "another node of this run answers there", now);
    }
    parent.greeted = true;
    return ask(parent, now);
  }
  if (record.type == RecordType::kIndex) return take_index(parent, record.payload, now);
  if (record.type == RecordType::kChunk) return take_chunk(parent, record.payload);
  give_up(parent, "corrupt", "it sent a record that only a child sends");
}

void Upstream::exchange(Parent& parent, Moment now) {
  for (int i = 0; i < kReceivesInARow && parent.link; ++i) {
    if (!parent.link->receive() && !parent.link->failed()) break;
    parent.heard = now;
    Record record;
    while (parent.link && !parent.gone && parent.link->next(record)) {
      obey(parent, record, now);
    }
    if (!parent.link || parent.gone) return;
    if (parent.link->failed()) break;
    if (parent.link->state() == PeerLink::State::kOpen && !parent.said_hello) {
      parent.said_hello = true;
      say(parent, RecordType::kHello, state_.hello(), now);
    }
  }
  switch (parent.link->state()) {
    case PeerLink::State::kRefused:
      return failed_here(parent, "refused",
                         "it has another key, or no room for one more connection", now);
    case PeerLink::State::kClosed:
      if (parent.greeted) return give_up(parent, "closed", "it closed the connection");
      return failed_here(parent, "refused", "it closed the connection at once", now);
    case PeerLink::State::kForged:
      return give_up(parent, "corrupt", "what it sent is not authentic");
    case PeerLink::State::kHandshake:
    case PeerLink::State::kOpen:
      parent.link->flush();
  }
}

void Upstream::judge(Parent& parent, Moment now) {
  if (parent.connecting) {
    if (now - parent.heard > kConnectTime) failed_here(parent, "unreachable", "no answer", now);
    return;
  }
  if (!parent.link) return;
  if (now - parent.heard > kQuiet) exchange(parent, now);
  if (parent.gone || !parent.link) return;
  if (now - parent.heard > kSilence) {
    if (!parent.greeted) return failed_here(parent, "silent", "no answer", now);
    return give_up(parent, "silent", "nothing came for 3 s");
  }
  if (parent.said_hello && parent.link->idle() && now - parent.said >= kPingEvery) {
    say(parent, RecordType::kPing, {}, now);
  }
  if (parent.greeted && !state_.has_index()) ask(parent, now);
}

void Upstream::sweep() {
  std::erase_if(parents_, [](const auto& entry) { return entry.second.gone; });
}

void Upstream::add_to(std::vector<pollfd>& fds) {
  for (auto& [id, parent] : parents_) {
    parent.slot = fds.size();
    if (parent.connecting) {
      fds.push_back({parent.connecting.get(), POLLOUT, 0});
    } else if (parent.link) {
      short events = POLLIN;
      if (!parent.link->idle()) events |= POLLOUT;
      fds.push_back({parent.link->fd(), events, 0});
    } else {
      parent.slot = 0;
    }
  }
}

void Upstream::work(const std::vector<pollfd>& fds, Moment now) {
  for (auto& [id, parent] : parents_) {
    if (parent.gone || parent.slot == 0 || fds[parent.slot].revents == 0) continue;
    if (parent.connecting) {
      finish_connecting(parent, now);
    } else if (parent.link) {
      exchange(parent, now);
    }
  }
  for (auto& [id, parent] : parents_) {
    if (!parent.gone) judge(parent, now);
  }
  sweep();
}

}  // namespace dsi::agent

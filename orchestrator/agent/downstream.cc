#include "orchestrator/agent/downstream.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace dsi::agent {

namespace {

constexpr std::size_t kIndexPiece = 32u << 10;
constexpr int kReceivesInARow = 4;
// Between two looks at what has arrived.
constexpr int kMostRounds = 16;

}  // namespace

bool RateLimit::allows(Moment now) {
  if (rate_ == 0) return true;
  if (refilled_ == Moment{}) refilled_ = now;
  left_ =
      std::min(left_ + rate_ * std::chrono::duration<double>(now - refilled_).count(), rate_ / 10);
  refilled_ = now;
  return left_ > 0;
}

std::chrono::milliseconds RateLimit::wait() const {
  if (rate_ == 0 || left_ > 0) return std::chrono::milliseconds(0);
  return std::chrono::milliseconds(1 + static_cast<std::int64_t>(-left_ / rate_ * 1000));
}

void Downstream::admit(UniqueFd socket, Moment now) {
  int on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  children_.emplace_back(PeerLink(std::move(socket), PeerLink::Role::kServer, *state_.key));
  Child& child = children_.back();
  child.in_flight.keep_short(child.link.fd());
  child.since = child.heard = child.said = now;
  exchange(child, now);
}

std::size_t Downstream::half_open() const {
  return static_cast<std::size_t>(std::count_if(children_.begin(), children_.end(),
                                                [](const Child& child) { return !child.greeted; }));
}

void Downstream::drop_half_open() {
  auto oldest = std::find_if(children_.begin(), children_.end(),
                             [](const Child& child) { return !child.greeted; });
  if (oldest != children_.end()) children_.erase(oldest);
}

bool Downstream::begin_stripe(Child& child, std::string_view payload) const {
  if (payload.size() < 4) return false;
  const auto& index = state_.stream->index();
  std::uint32_t number = number_at(payload);
  if (number >= index.stripes) return false;
  Stripe stripe;
  stripe.has.resize(index.chunks_in(number));
  if (!unpack_bits(payload.substr(4), stripe.has)) return false;
  child.stripes[number] = std::move(stripe);
  return true;
}

// False: this is no child to have.
bool Downstream::obey(Child& child, const Record& record, Moment now) {
  if (!child.greeted) {
    if (record.type != RecordType::kHello || !state_.stream) return false;
    std::string ours = state_.hello();
    if (record.payload.size() != ours.size() ||
        record.payload.substr(4) != std::string_view(ours).substr(4)) {
      return false;
    }
    child.greeted = true;
    child.link.put(RecordType::kHello, state_.hello());
    child.said = now;
    return true;
  }
  switch (record.type) {
    case RecordType::kPing:
      return true;
    case RecordType::kAskIndex:
      child.wants_index = true;
      child.index_sent = 0;
      return true;
    case RecordType::kFollow:
      if (state_.has_index()) return begin_stripe(child, record.payload);
      // Who follows has the index; who is followed may still wait for it.
      child.early.emplace_back(record.payload);
      return child.early.size() <= distribute::kMaxStripes;
    case RecordType::kUnfollow:
      if (record.payload.size() < 4) return false;
      child.stripes.erase(number_at(record.payload));
      return true;
    case RecordType::kHello:
    case RecordType::kIndex:
    case RecordType::kChunk:
      return false;
  }
  return false;
}

void Downstream::exchange(Child& child, Moment now) {
  for (int i = 0; i < kReceivesInARow && !child.gone; ++i) {
    bool came = child.link.receive();
    if (!came && !child.link.failed()) break;
    child.heard = now;
    Record record;
    while (!child.gone && child.link.next(record)) child.gone = !obey(child, record, now);
    if (child.link.failed()) child.gone = true;
  }
  if (!child.gone) child.link.flush();
}

bool Downstream::send_index(Child& child) {
  std::string_view rest = std::string_view(state_.stream->encoded_index()).substr(child.index_sent);
  std::string_view piece = rest.substr(0, kIndexPiece);
  child.link.put(RecordType::kIndex, piece);
  limit_.spend(piece.size());
  child.index_sent += piece.size();
  if (piece.size() == rest.size()) child.wants_index = false;
  return true;
}

// The lowest chunk that the child lacks of its stripes and that is here.
bool Downstream::send_chunk(Child& child) {
  const Incoming& stream = *state_.stream;
  std::uint32_t stripes = stream.index().stripes;
  std::uint32_t lowest = std::numeric_limits<std::uint32_t>::max();
  for (auto& [number, stripe] : child.stripes) {
    while (stripe.begin < stripe.has.size() && stripe.has[stripe.begin]) ++stripe.begin;
    for (std::uint32_t i = stripe.begin; i < stream.end_of(number); ++i) {
      if (stripe.has[i] || !stream.has(i * stripes + number)) continue;
      lowest = std::min(lowest, i * stripes + number);
      break;
    }
  }
  if (lowest == std::numeric_limits<std::uint32_t>::max()) return false;
  std::uint32_t size = stream.size_of(lowest);
  char* to = child.link.begin(RecordType::kChunk, number_bytes(lowest), size);
  if (!stream.load(lowest, to)) {
    child.gone = true;  // With half a record in its buffer there is no going on.
    return false;
  }
  child.link.seal();
  child.stripes[lowest % stripes].has[lowest / stripes] = true;
  limit_.spend(size);
  state_.sent += size;
  return true;
}

bool Downstream::send_next(Child& child, Moment now) {
  if (child.gone || !child.greeted || !child.link.idle() || !state_.has_index()) return false;
  for (const std::string& payload : std::exchange(child.early, {})) {
    child.gone |= !begin_stripe(child, payload);
  }
  if (!child.wants_index && child.stripes.empty()) return false;
  if (!limit_.allows(now)) {
    limited_ = true;
    return false;
  }
  if (child.wants_index ? !send_index(child) : !send_chunk(child)) return false;
  child.said = now;
  child.link.flush();
  // What waits in the buffer of a slow child could not be taken back when it gets another parent,
  // and would say nothing about how fast it is.
  child.in_flight.keep_short(child.link.fd());
  return true;
}

void Downstream::serve(Moment now) {
  limited_ = false;
  more_ = true;
  for (int round = 0; round < kMostRounds && more_; ++round) {
    more_ = false;
    for (Child& child : children_) more_ |= send_next(child, now);
    // Under a limit nobody is always the first.
    if (more_) children_.splice(children_.end(), children_, children_.begin());
  }
  children_.remove_if([](const Child& child) { return child.gone; });
}

std::chrono::milliseconds Downstream::wait(std::chrono::milliseconds most) const {
  if (more_) return std::chrono::milliseconds(0);
  return limited_ ? std::min(most, limit_.wait()) : most;
}

void Downstream::judge(Child& child, Moment now) {
  if (!child.greeted && now - child.since > kHandshakeTime) child.gone = true;
  if (now - child.heard > kDeafness) child.gone = true;
  if (!child.gone && child.greeted && child.link.idle() && now - child.said >= kPingEvery) {
    child.link.put(RecordType::kPing, {});
    child.said = now;
    child.link.flush();
  }
}

void Downstream::add_to(std::vector<pollfd>& fds) {
  for (Child& child : children_) {
    child.slot = fds.size();
    short events = POLLIN;
    if (!child.link.idle()) events |= POLLOUT;
    fds.push_back({child.link.fd(), events, 0});
  }
}

void Downstream::work(const std::vector<pollfd>& fds, Moment now) {
  for (Child& child : children_) {
    // Slot 0: it came after poll().
    if (child.slot == 0 || fds[child.slot].revents == 0) continue;
    if ((fds[child.slot].revents & ~POLLOUT) != 0) {
      exchange(child, now);
    } else {
      child.link.flush();
    }
  }
  for (Child& child : children_) judge(child, now);
  children_.remove_if([](const Child& child) { return child.gone; });
}

}  // namespace dsi::agent

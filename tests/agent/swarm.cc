#include "tests/agent/swarm.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <zstd.h>

#include <cstring>
#include <numeric>
#include <random>

#include "orchestrator/base/sha256.h"

namespace dsi::testing {

using agent::PeerLink;
using agent::Record;
using agent::RecordType;
using protocol::Message;

bool enter_own_network() {
  static const bool kDone = [] {
    if (::unshare(CLONE_NEWNET) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return false;
    UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ifreq loopback{};
    std::strcpy(loopback.ifr_name, "lo");
    loopback.ifr_flags = IFF_UP;
    return ::ioctl(fd.get(), SIOCSIFFLAGS, &loopback) == 0;
  }();
  return kDone;
}

std::string random_text(std::size_t size, unsigned seed) {
  std::mt19937_64 engine(seed);
  std::string text;
  while (text.size() < size) {
    std::uint64_t word = engine();
    text.append(reinterpret_cast<const char*>(&word), sizeof word);
  }
  text.resize(size);
  return text;
}

std::string compress_patch(std::string_view base, std::string_view data) {
  std::unique_ptr<ZSTD_CCtx, std::size_t (*)(ZSTD_CCtx*)> context(ZSTD_createCCtx(), ZSTD_freeCCtx);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_windowLog, 24);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_enableLongDistanceMatching, 1);
  ZSTD_CCtx_refPrefix(context.get(), base.data(), base.size());
  std::string out(ZSTD_compressBound(data.size()), '\0');
  out.resize(ZSTD_compress2(context.get(), out.data(), out.size(), data.data(), data.size()));
  return out;
}

void TestStream::add(const std::string& digest, std::uint64_t size, const std::string& wire,
                     const std::string& base) {
  index.objects.push_back({digest, base, size, wire.size()});
  bytes += wire;
}

void TestStream::cut(std::uint32_t chunk_size, std::uint32_t stripes) {
  index.chunk_size = chunk_size;
  index.stripes = stripes;
  index.hashes.clear();
  for (std::size_t at = 0; at < bytes.size(); at += chunk_size) {
    index.hashes.push_back(distribute::hash_of(std::string_view(bytes).substr(at, chunk_size)));
  }
  encoded = distribute::encode(index);
}

std::string_view TestStream::chunk(std::uint32_t number) const {
  return std::string_view(bytes).substr(std::size_t{number} * index.chunk_size, index.chunk_size);
}

protocol::SwarmRequest TestStream::request() const {
  return {sha256_hex(encoded), encoded.size()};
}

TestStream stream_of(const TestRelease& release, std::uint32_t chunk_size, std::uint32_t stripes) {
  TestStream stream;
  for (const auto& [digest, content] : release.contents) {
    stream.add(digest, content.size(), compress(content));
  }
  stream.cut(chunk_size, stripes);
  return stream;
}

std::uint32_t SwarmNode::chunks() const {
  return std::accumulate(have.counts.begin(), have.counts.end(), std::uint32_t{0});
}

bool SwarmNode::has_fault(const std::string& kind) const {
  return std::any_of(faults.begin(), faults.end(),
                     [&](const protocol::PeerFault& fault) { return fault.kind == kind; });
}

SwarmNode& TestSwarm::add(const std::string& agent, const std::filesystem::path& prefix,
                          const HeadSettings& settings) {
  SwarmNode& node = nodes.emplace_back();
  node.number = static_cast<std::uint32_t>(nodes.size() - 1);
  node.prefix = prefix;
  node.head = std::make_unique<Head>(agent, prefix, settings);
  return node;
}

void TestSwarm::listen(SwarmNode& node, const std::string& key, const std::string& ports,
                       std::uint64_t rate) {
  node.listening = {};
  node.head->send("listen", protocol::ListenRequest{node.number, key, ports, rate});
  wait([&] { return node.listening.port != 0 || !node.listening.error.empty() || node.gone; });
}

void TestSwarm::join(SwarmNode& node, const TestRelease& release) {
  protocol::InstallRequest request;
  request.run = "run-1";
  request.by = "tester@head";
  request.manifest = release.text();
  node.head->send("install", request);
  wait([&] { return node.need || node.result || node.gone; });
  if (!node.need) return;
  node.head->send("swarm", stream.request());
  wait([&] { return node.joined || node.result || node.gone; });
}

void TestSwarm::follow(SwarmNode& child, std::uint32_t stripe, const SwarmNode* parent) {
  protocol::Follow follow;
  follow.stripe = stripe;
  if (parent != nullptr) {
    follow.parent = parent->number;
    follow.port = parent->listening.port;
    follow.addresses = parent->listening.addresses;
  }
  child.head->send("follow", follow);
}

void TestSwarm::follow_all(SwarmNode& child, const SwarmNode* parent) {
  for (std::uint32_t stripe = 0; stripe < stream.index.stripes; ++stripe) {
    follow(child, stripe, parent);
  }
}

void TestSwarm::send_index(SwarmNode& node) {
  node.head->send("index", {{"size", stream.encoded.size()}});
  node.head->send_raw(protocol::data_frame(stream.encoded));
}

void TestSwarm::send_chunk(SwarmNode& node, std::uint32_t number) {
  node.head->send_raw(protocol::chunk_frame(number, stream.chunk(number)));
}

void TestSwarm::send_chunks(SwarmNode& node, std::uint32_t begin, std::uint32_t end) {
  for (std::uint32_t i = begin; i < std::min(end, stream.index.chunks()); ++i) send_chunk(node, i);
}

void TestSwarm::note(SwarmNode& node, const Message& message) {
  auto keep = [&](auto& into) {
    using T = std::decay_t<decltype(into)>;
    if (auto body = protocol::body_as<T>(message)) into = *std::move(body);
  };
  if (message.type == "listening") keep(node.listening);
  if (message.type == "need") keep(node.need.emplace());
  if (message.type == "joined") keep(node.joined.emplace());
  if (message.type == "have") keep(node.have);
  if (message.type == "fault") keep(node.faults.emplace_back());
  if (message.type == "complete") node.complete = true;
  if (message.type == "result") keep(node.result.emplace());
}

bool TestSwarm::wait(const std::function<bool()>& done) {
  auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::vector<pollfd> fds;
    for (SwarmNode& node : nodes) {
      if (!node.gone) fds.push_back({node.head->from_fd(), POLLIN, 0});
    }
    ::poll(fds.data(), fds.size(), 20);
    for (SwarmNode& node : nodes) {
      while (!node.gone) {
        auto message = node.head->receive_within(std::chrono::milliseconds(0), node.gone);
        if (!message) break;
        note(node, *message);
      }
    }
  }
  return true;
}

bool TestSwarm::wait_for_results() {
  return wait([&] {
    return std::all_of(nodes.begin(), nodes.end(),
                       [](const SwarmNode& node) { return node.result || node.gone; });
  });
}

namespace {

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

}  // namespace

UniqueFd connect_to(std::uint16_t port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = loopback(port);
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return {};
  timeval wait{30, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
  return fd;
}

bool is_open(std::uint16_t port) {
  return static_cast<bool>(connect_to(port));
}

BadPeer::BadPeer(std::uint32_t number, const TestStream& stream, const std::string& key,
                 Serve serve)
    : number_(number), stream_(stream), key_(*agent::run_key(key)), serve_(std::move(serve)) {
  agent::prepare_cryptography();
  listener_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  if (::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::listen(listener_.get(), 16) != 0 ||
      ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    std::abort();
  }
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { run(); });
}

BadPeer::~BadPeer() {
  ::shutdown(listener_.get(), SHUT_RDWR);
  thread_.join();
}

protocol::Follow BadPeer::as_parent(std::uint32_t stripe) const {
  return {stripe, number_, port_, {"127.0.0.1"}};
}

void BadPeer::run() {
  for (;;) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return;
    PeerLink link(std::move(socket), PeerLink::Role::kServer, key_);
    if (!wait_for(link, RecordType::kHello)) continue;
    auto digest = distribute::hash_of(stream_.encoded);
    link.put(RecordType::kHello,
             agent::number_bytes(number_) +
                 std::string(reinterpret_cast<const char*>(digest.data()), digest.size()));
    send(link);
    serve_(link);
  }
}

bool BadPeer::wait_for(PeerLink& link, RecordType type) {
  Record record;
  for (;;) {
    while (link.next(record)) {
      if (record.type == type) return true;
    }
    if (link.failed()) return false;
    send(link);
    pollfd fd{link.fd(), POLLIN, 0};
    if (::poll(&fd, 1, 30'000) <= 0) return false;
    link.receive();
  }
}

PeerLink& BadPeer::wait_until_open(PeerLink& link) {
  Record record;
  while (link.state() == PeerLink::State::kHandshake) {
    pollfd fd{link.fd(), POLLIN, 0};
    if (::poll(&fd, 1, 30'000) <= 0) break;
    link.receive();
    (void)link.next(record);
  }
  return link;
}

void BadPeer::send(PeerLink& link) {
  for (int i = 0; i < 1000 && !link.flush() && !link.failed(); ++i) {
    pollfd fd{link.fd(), POLLOUT, 0};
    ::poll(&fd, 1, 100);
  }
}

void BadPeer::put_chunk(PeerLink& link, std::uint32_t number, std::string_view bytes) {
  link.put(RecordType::kChunk, agent::number_bytes(number) + std::string(bytes));
}

}  // namespace dsi::testing

#include "orchestrator/agent/exchange.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <filesystem>
#include <functional>
#include <limits>
#include <utility>

#include "orchestrator/agent/agent_source.h"
#include "orchestrator/agent/downstream.h"
#include "orchestrator/agent/listener.h"
#include "orchestrator/agent/prefix.h"
#include "orchestrator/agent/upstream.h"
#include "orchestrator/base/sync.h"

namespace dsi::agent {

using protocol::Frame;
using protocol::Message;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds kTick{250};
constexpr milliseconds kHaveEvery{150};
constexpr milliseconds kSentEvery{500};  // When only what was sent has changed.
constexpr std::size_t kMostHalfOpen = 64;
// Of chunks that the head sent before the index has come from another node.
constexpr std::size_t kMostEarly = 32u << 20;
// No message of the swarm is longer, and no other needs to be looked into twice.
constexpr std::size_t kLongestMessage = 64u << 10;
constexpr std::size_t kMagicBytes = 4;
// The installation itself opens files and pipes, and must not fail because many connect.
constexpr rlim_t kDescriptorsKept = 64;

// Connections get no descriptor from this one on. The kernel gives the lowest that is free.
int end_of_descriptors() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  rlim_t end = std::min<rlim_t>(limit.rlim_cur, std::numeric_limits<int>::max());
  return static_cast<int>(end - std::min(kDescriptorsKept, end / 2));
}

// A connection that has not yet said what it is.
struct Arrival {
  UniqueFd socket;
  Moment since;
  std::size_t slot = 0;
};

// The agent is passed on from the folder in which it lies.
std::unique_ptr<AgentSource> source_of_this_program(const RunKey& key) {
  std::error_code ignored;
  auto self = std::filesystem::read_symlink("/proc/self/exe", ignored);
  return std::make_unique<AgentSource>(self.parent_path().string(), own_digest(), key);
}

}  // namespace

class Exchange::Loop {
 public:
  Loop(Wire& wire, UniqueFd wake) : wire_(wire), wake_(std::move(wake)) {}

  void listen(const Message& message);
  void take_over(protocol::FrameReader rest) { reader_ = std::move(rest); }
  void run();

  // For other threads.
  void post(std::function<void()> command) {
    commands_.with([&](auto& commands) { commands.push_back(std::move(command)); });
    wake_up();
  }
  void wake_up() const {
    std::uint64_t one = 1;
    // Full means that it is awake anyway.
    (void)!::write(wake_.get(), &one, sizeof one);
  }
  void join(std::shared_ptr<Incoming> incoming);
  void leave();
  void stop() { running_ = false; }

 private:
  void run_commands();
  void read_head();
  bool obey(Frame& frame);
  bool obey_message(const Message& message);
  void take_index(std::string_view bytes);
  void take_chunk(const Frame& frame);
  void index_came();
  void accept_all();
  void look_at_arrivals(const std::vector<pollfd>& fds);
  void hand_over(UniqueFd socket, std::string_view magic);
  void drop_one_half_open();
  void report();
  void send_have();
  void close_ports();
  void end(Error why);
  void lose_head(std::string why);
  milliseconds wait() const;

  Wire& wire_;
  UniqueFd wake_;
  Sync<std::deque<std::function<void()>>> commands_;
  bool running_ = true;
  bool ended_ = false;  // Nothing more comes from the head.
  Moment now_ = Clock::now();

  protocol::FrameReader reader_;
  Frame frame_;  // Keeps its memory: musl maps every block of a chunk's size anew.
  std::size_t head_slot_ = 0;
  SwarmState state_;
  Upstream upstream_{state_};
  Downstream downstream_{state_};
  UniqueFd listener_;
  UniqueFd reserve_;  // Given up to be able to turn somebody away when descriptors run out.
  const int end_of_descriptors_ = end_of_descriptors();
  std::size_t listener_slot_ = 0;
  Moment heard_head_{};
  std::deque<Arrival> arrivals_;
  std::unique_ptr<AgentSource> agent_source_;

  std::uint64_t index_left_ = 0;  // Of what the head has announced.
  std::string index_;
  std::vector<Frame> early_;
  std::size_t early_bytes_ = 0;

  protocol::Have told_;
  Moment told_at_{};
  bool told_whole_ = false;
};

void Exchange::Loop::listen(const Message& message) {
  close_ports();
  protocol::Listening answer;
  auto open = [&]() -> Result<void> {
    DSI_TRY(auto request, protocol::body_as<protocol::ListenRequest>(message));
    DSI_TRY(RunKey key, run_key(request.key));
    if (!prepare_cryptography()) return fail("the system gives no random numbers");
    state_.self = request.self;
    state_.key = key;
    downstream_.limit_rate(request.rate);
    if (request.ports == "none") return {};
    DSI_TRY(Listener listener, listen_on(request.ports));
    listener_ = std::move(listener.socket);
    reserve_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    answer.port = listener.port;
    answer.addresses = own_addresses();
    return {};
  };
  if (auto opened = open(); !opened) {
    answer.error = opened.error().what;
    if (!opened.error().help.empty()) answer.error += ": " + opened.error().help;
  }
  wire_.send("listening", answer);
}

void Exchange::Loop::join(std::shared_ptr<Incoming> incoming) {
  leave();
  if (ended_) return incoming->give_up({"the head left in the middle of an install", {}});
  state_.stream = std::move(incoming);
}

void Exchange::Loop::leave() {
  upstream_.clear();
  downstream_.clear();
  state_.stream.reset();
  state_.received = state_.sent = 0;
  index_left_ = 0;
  index_.clear();
  early_.clear();
  early_bytes_ = 0;
  told_ = {};
  told_whole_ = false;
}

void Exchange::Loop::close_ports() {
  leave();
  arrivals_.clear();
  listener_.reset();
  reserve_.reset();
  agent_source_.reset();
  state_.key.reset();
}

void Exchange::Loop::end(Error why) {
  ended_ = true;
  if (state_.stream) state_.stream->give_up(std::move(why));
  close_ports();
}

// The wire knows it before the main thread is woken: whether the head is gone decides there what is
// kept for the next run.
void Exchange::Loop::lose_head(std::string why) {
  wire_.deliver_end();
  end({std::move(why), {}});
}

void Exchange::Loop::run_commands() {
  std::uint64_t count = 0;
  (void)!::read(wake_.get(), &count, sizeof count);
  auto commands = commands_.with([](auto& waiting) { return std::exchange(waiting, {}); });
  for (auto& command : commands) command();
}

// ---- What the head says

void Exchange::Loop::read_head() {
  for (;;) {
    auto whole = reader_.next(frame_);
    if (!whole) {
      wire_.deliver_error(whole.error());
      return end({"the head's stream is out of step", {}});
    }
    if (!*whole) return;
    if (!obey(frame_)) wire_.deliver(std::move(frame_));
  }
}

// False: it is not for the swarm.
bool Exchange::Loop::obey(Frame& frame) {
  if (frame.type == 'C') {
    take_chunk(frame);
    return true;
  }
  if (frame.type == 'D') {
    if (index_left_ == 0) return false;
    take_index(frame.payload);
    return true;
  }
  if (frame.payload.size() > kLongestMessage) return false;
  auto message = protocol::read_message(frame);
  return message && obey_message(*message);
}

bool Exchange::Loop::obey_message(const Message& message) {
  if (message.type == "listen") {
    listen(message);
  } else if (message.type == "dismiss") {
    send_have();
    // No harm if everything is here, and only then is a node not needed.
    if (state_.stream) state_.stream->give_up({"the head dismissed this node too early", {}});
    close_ports();
  } else if (message.type == "ping") {
    // That it came is all it says.
  } else if (message.type == "index") {
    auto size = message.body.find("size");
    bool good = size != message.body.end() && size->is_number_unsigned();
    // Another one than was agreed on is read past and not believed.
    index_left_ = good ? size->get<std::uint64_t>() : 0;
    index_.clear();
  } else if (message.type == "follow") {
    if (auto follow = protocol::body_as<protocol::Follow>(message)) upstream_.follow(*follow, now_);
  } else {
    return false;
  }
  return true;
}

void Exchange::Loop::take_index(std::string_view bytes) {
  bytes = bytes.substr(0, index_left_);
  index_left_ -= bytes.size();
  if (!state_.stream || state_.has_index()) return;
  if (index_.size() + bytes.size() <= state_.stream->index_size()) index_ += bytes;
  if (index_left_ > 0) return;
  auto taken = state_.stream->take_index(std::exchange(index_, {}));
  if (!taken) return state_.stream->give_up(taken.error());
  if (!*taken) {
    return state_.stream->give_up({"the index of the swarm is not the one that was announced", {}});
  }
  upstream_.index_came(now_);
  index_came();
}

void Exchange::Loop::index_came() {
  for (const Frame& frame : std::exchange(early_, {})) take_chunk(frame);
  early_bytes_ = 0;
}

void Exchange::Loop::take_chunk(const Frame& frame) {
  if (!state_.stream) return;  // It is on its way to who has just left.
  if (!state_.has_index()) {
    early_bytes_ += frame.payload.size();
    if (early_bytes_ > kMostEarly) {
      return state_.stream->give_up({"chunks came, and no index of the swarm", {}});
    }
    early_.push_back(frame);
    return;
  }
  auto chunk = protocol::read_chunk(frame);
  auto stored =
      chunk ? state_.stream->store(chunk->number, chunk->bytes) : Incoming::Stored::kWrong;
  if (!stored) return state_.stream->give_up(stored.error());
  if (*stored == Incoming::Stored::kWrong) {
    std::uint32_t number = chunk ? chunk->number : 0;
    wire_.send("fault", protocol::PeerFault{
                            protocol::kHeadIsParent, number % state_.stream->index().stripes,
                            "corrupt", fmt::format("chunk {} is not what it should be", number)});
  }
}

// ---- Who connects

void Exchange::Loop::accept_all() {
  for (std::size_t i = 0; i < kMostHalfOpen; ++i) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      if ((errno != EMFILE && errno != ENFILE) || !reserve_) return;
      // Left in the queue it would keep this loop busy and the other end in the dark.
      reserve_.reset();
      socket.reset(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      bool turned_away = static_cast<bool>(socket);
      socket.reset();
      reserve_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
      if (!turned_away) return;
      continue;
    }
    if (arrivals_.size() + downstream_.half_open() >= kMostHalfOpen) drop_one_half_open();
    if (socket.get() >= end_of_descriptors_) {
      drop_one_half_open();
      socket.reset(::fcntl(socket.get(), F_DUPFD_CLOEXEC, 0));
      if (!socket || socket.get() >= end_of_descriptors_) continue;
    }
    int low_water = static_cast<int>(kMagicBytes);
    ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVLOWAT, &low_water, sizeof low_water);
    arrivals_.push_back({std::move(socket), now_});
  }
}

// Who takes up connections and says nothing loses the oldest of them, not the node its swarm.
void Exchange::Loop::drop_one_half_open() {
  if (!arrivals_.empty()) {
    arrivals_.pop_front();
  } else {
    downstream_.drop_half_open();
  }
}

void Exchange::Loop::look_at_arrivals(const std::vector<pollfd>& fds) {
  std::deque<Arrival> waiting;
  for (Arrival& one : std::exchange(arrivals_, {})) {
    bool ready = one.slot != 0 && fds[one.slot].revents != 0;
    if (!ready) {
      if (now_ - one.since <= kHandshakeTime) waiting.push_back(std::move(one));
      continue;
    }
    char magic[kMagicBytes];
    ssize_t n = ::recv(one.socket.get(), magic, sizeof magic, MSG_PEEK | MSG_DONTWAIT);
    if (n != static_cast<ssize_t>(sizeof magic)) continue;  // It has closed, or will not say.
    int low_water = 1;
    ::setsockopt(one.socket.get(), SOL_SOCKET, SO_RCVLOWAT, &low_water, sizeof low_water);
    hand_over(std::move(one.socket), {magic, sizeof magic});
  }
  for (Arrival& one : arrivals_) waiting.push_back(std::move(one));
  arrivals_ = std::move(waiting);
}

// The one place where it is decided by whom a connection is served. Nothing was read from it yet,
// and who speaks no protocol that is known here is not answered.
void Exchange::Loop::hand_over(UniqueFd socket, std::string_view magic) {
  if (!state_.key) return;
  if (magic == kPeerMagic) {
    downstream_.admit(std::move(socket), now_);
  } else if (magic == kLoaderMagic) {
    // It runs in threads of its own, and most nodes are never asked.
    if (!agent_source_) agent_source_ = source_of_this_program(*state_.key);
    agent_source_->serve(std::move(socket));
  }
}

// ---- What the head is told

void Exchange::Loop::send_have() {
  if (!state_.has_index()) return;
  protocol::Have have{state_.stream->counts(), state_.received, state_.sent};
  bool same =
      have.counts == told_.counts && have.received == told_.received && have.sent == told_.sent;
  if (same) return;
  told_ = std::move(have);
  told_at_ = now_;
  told_whole_ = state_.stream->whole();
  wire_.send("have", told_);
}

void Exchange::Loop::report() {
  for (const protocol::PeerFault& fault : upstream_.take_faults()) wire_.send("fault", fault);
  if (upstream_.disk_error() && state_.stream) {
    state_.stream->give_up(*upstream_.disk_error());
  }
  if (!state_.has_index()) return;
  bool whole_news = state_.stream->whole() && !told_whole_;
  bool counts_news = state_.stream->counts() != told_.counts;
  if (whole_news || now_ - told_at_ >= (counts_news ? kHaveEvery : kSentEvery)) send_have();
}

// ---- The loop

milliseconds Exchange::Loop::wait() const {
  bool busy = !upstream_.empty() || !downstream_.empty() || !arrivals_.empty() ||
              (state_.has_index() &&
               (state_.stream->counts() != told_.counts || state_.sent != told_.sent));
  if (!busy) return ended_ ? milliseconds(-1) : milliseconds(1000);
  milliseconds most = kTick;
  if (state_.has_index() && state_.stream->counts() != told_.counts) {
    auto due = std::chrono::ceil<milliseconds>(told_at_ + kHaveEvery - now_);
    most = std::clamp(due, milliseconds(1), most);
  }
  return downstream_.wait(most);
}

void Exchange::Loop::run() {
  std::vector<pollfd> fds;
  std::vector<char> buffer(128u << 10);
  heard_head_ = Clock::now();
  read_head();  // What came with "listen".
  while (running_) {
    fds.clear();
    fds.push_back({wake_.get(), POLLIN, 0});
    head_slot_ = listener_slot_ = 0;
    if (!ended_ && !wire_.is_full()) {
      head_slot_ = fds.size();
      fds.push_back({wire_.in(), POLLIN, 0});
    }
    if (listener_) {
      listener_slot_ = fds.size();
      fds.push_back({listener_.get(), POLLIN, 0});
    }
    for (Arrival& one : arrivals_) {
      one.slot = fds.size();
      fds.push_back({one.socket.get(), POLLIN, 0});
    }
    upstream_.add_to(fds);
    downstream_.add_to(fds);
    now_ = Clock::now();
    ::poll(fds.data(), fds.size(), static_cast<int>(wait().count()));
    now_ = Clock::now();

    // Before the head is heard: who has joined may be told at once whom to follow.
    if (fds[0].revents != 0) run_commands();
    bool had_index = state_.has_index();
    upstream_.work(fds, now_);
    if (!had_index && state_.has_index()) index_came();
    downstream_.work(fds, now_);
    look_at_arrivals(fds);
    if (listener_slot_ != 0 && fds[listener_slot_].revents != 0) accept_all();
    if (head_slot_ != 0 && fds[head_slot_].revents != 0) {
      ssize_t n = ::read(wire_.in(), buffer.data(), buffer.size());
      if (n > 0) {
        heard_head_ = now_;
        reader_.feed({buffer.data(), static_cast<std::size_t>(n)});
        read_head();
      } else if (n == 0 || errno != EINTR) {
        lose_head("the head left in the middle of an install");
      }
    }
    // What the main flow has not taken yet is not read, and no sign of silence.
    if (wire_.is_full()) heard_head_ = now_;
    // A head that serves nobody from here has nothing to say until it wants something.
    if (!ended_ && state_.key && now_ - heard_head_ > protocol::kHeadSilence) {
      lose_head("the head has not been heard of for too long");
    }
    downstream_.serve(now_);
    report();
  }
  end({"the agent leaves", {}});
}

Exchange::Exchange(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}

std::unique_ptr<Exchange> Exchange::start(Wire& wire, const Message& listen,
                                          protocol::FrameReader& rest) {
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) {
    protocol::Listening answer;
    answer.error = fail_system(errno, "no exchange with other nodes").value().what;
    wire.send("listening", answer);
    return nullptr;
  }
  std::unique_ptr<Exchange> exchange(new Exchange(std::make_unique<Loop>(wire, std::move(wake))));
  Loop* loop = exchange->loop_.get();
  wire.on_drained([loop] { loop->wake_up(); });
  loop->listen(listen);
  loop->take_over(std::move(rest));
  exchange->thread_ = std::thread([loop] { loop->run(); });
  return exchange;
}

Exchange::~Exchange() {
  loop_->post([loop = loop_.get()] { loop->stop(); });
  thread_.join();
}

void Exchange::join(std::shared_ptr<Incoming> incoming) {
  loop_->post([loop = loop_.get(), incoming = std::move(incoming)] { loop->join(incoming); });
}

void Exchange::leave() {
  loop_->post([loop = loop_.get()] { loop->leave(); });
}

}  // namespace dsi::agent

#include "orchestrator/agent/shared_load.h"

#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>

namespace dsi::agent {

namespace {

// The order in which the libraries are loaded: none may be found only because one before it brought
// it in from a place of its own (an RPATH), where an op alone would not find it. So what depends on
// nothing of torch comes first, then torch from the bottom up.
int rank_of(std::string_view name) {
  if (name.starts_with("libc10.")) return 1;
  if (name.starts_with("libc10")) return 2;
  if (name.starts_with("libtorch_cpu.")) return 3;
  if (name.starts_with("libtorch.")) return 5;
  if (name.starts_with("libtorch_python.")) return 6;
  return name.starts_with("libtorch") ? 4 : 0;
}

// "WORD REST" → REST.
std::optional<std::string_view> after(std::string_view text, std::string_view word) {
  if (!text.starts_with(word)) return std::nullopt;
  return text.substr(word.size());
}

bool take_number(std::string_view& text, int& number) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  if (text.starts_with(' ')) text.remove_prefix(1);
  return true;
}

}  // namespace

bool is_torch_library(std::string_view name) {
  return rank_of(name) > 0;
}

SharedLoad::SharedLoad(const std::string& probe, const std::set<std::string>& libraries,
                       std::vector<std::string> environment, unsigned long cpu_seconds,
                       Deadline deadline)
    : deadline_(deadline), loaded_(libraries) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return;
  control_.reset(ends[0]);
  UniqueFd theirs(ends[1]);
  std::vector<std::string> names(libraries.begin(), libraries.end());
  std::stable_sort(names.begin(), names.end(),
                   [](const auto& a, const auto& b) { return rank_of(a) < rank_of(b); });
  ChildSpec spec;
  spec.argv = {probe, "--shared"};
  spec.argv.insert(spec.argv.end(), names.begin(), names.end());
  spec.environment = std::move(environment);
  spec.cpu_seconds = cpu_seconds;  // Each forked process has as much again: it starts at zero.
  spec.input = theirs.get();
  auto child = Child::start(spec);
  if (!child) return;
  process_.emplace(*std::move(child));
  state_ = State::loading;
}

SharedLoad::~SharedLoad() {
  abandon();
}

void SharedLoad::abandon() {
  process_.reset();
  // What it said before it went: the numbers of processes that it has started. They got SIGKILL by
  // its death; what they started is in their groups.
  char packet[1024];
  ssize_t n = 0;
  while (state_ == State::ready &&
         (n = ::recv(control_.get(), packet, sizeof packet, MSG_DONTWAIT)) > 0 &&
         hear(std::string(packet, static_cast<std::size_t>(n)))) {
  }
  state_ = State::failed;
  control_.reset();
  for (const auto& op : ops_) {
    if (op->pid > 0) ::kill(-op->pid, SIGKILL);
  }
  ops_.clear();
}

bool SharedLoad::has(const std::vector<std::string>& libraries) const {
  return std::all_of(libraries.begin(), libraries.end(),
                     [&](const std::string& name) { return loaded_.contains(name); });
}

bool SharedLoad::send(const std::vector<std::string>& words, const std::vector<int>& fds) {
  std::string packet;
  for (const std::string& word : words) packet += word + '\0';
  iovec part{packet.data(), packet.size()};
  alignas(cmsghdr) char extra[CMSG_SPACE(2 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = extra;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(head), fds.data(), fds.size() * sizeof(int));
  }
  ssize_t n = 0;
  do {
    n = ::sendmsg(control_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (n < 0 && errno == EINTR);
  return n == static_cast<ssize_t>(packet.size());
}

std::shared_ptr<ForkedOp> SharedLoad::start(const std::string& library, const std::string& op,
                                            const std::string& device, const std::string& nonce) {
  auto forked = std::make_shared<ForkedOp>();
  UniqueFd out;
  UniqueFd answer;
  auto output = Output::make(out, answer);
  bool open = output.has_value();
  if (open) forked->output = *std::move(output);
  ops_.push_back(forked);
  if (!open || !send({"run", library, op, device, nonce}, {out.get(), answer.get()})) abandon();
  return forked;
}

void SharedLoad::kill(const ForkedOp& op) {
  // By the process that reaps it: for it alone the number cannot be another's by now.
  if (state_ == State::ready && op.pid > 0 && !send({"kill", std::to_string(op.pid)}, {})) {
    abandon();
  }
}

bool SharedLoad::hear(const std::string& said) {
  if (state_ == State::loading) {
    if (said == "ready") {
      state_ = State::ready;
      return true;
    }
    auto name = after(said, "absent ");
    if (!name || is_torch_library(*name)) return false;  // "unfit", or nothing to share.
    loaded_.erase(std::string(*name));
    return true;
  }
  int pid = 0;
  int status = 0;
  if (auto rest = after(said, "started "); rest && take_number(*rest, pid)) {
    auto first =
        std::find_if(ops_.begin(), ops_.end(), [](const auto& op) { return op->pid == 0; });
    if (first == ops_.end() || pid <= 0) return false;
    (*first)->pid = pid;
    return true;
  }
  if (auto rest = after(said, "ended ");
      rest && take_number(*rest, pid) && take_number(*rest, status)) {
    auto op =
        std::find_if(ops_.begin(), ops_.end(), [&](const auto& one) { return one->pid == pid; });
    if (op == ops_.end() || pid <= 0) return false;
    (*op)->status = status;
    ops_.erase(op);
    return true;
  }
  return false;
}

void SharedLoad::update() {
  if (state_ == State::failed) return;
  process_->drain();  // What a library prints must not block it.
  for (;;) {
    char packet[1024];
    ssize_t n = ::recv(control_.get(), packet, sizeof packet, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (n <= 0 || !hear(std::string(packet, static_cast<std::size_t>(n)))) return abandon();
  }
  if (state_ == State::loading && deadline_.passed()) abandon();
}

}  // namespace dsi::agent

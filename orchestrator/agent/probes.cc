#include "orchestrator/agent/probes.h"

#include <poll.h>
#include <sched.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <list>
#include <optional>
#include <set>
#include <utility>

#include "orchestrator/agent/child.h"
#include "orchestrator/agent/shared_load.h"
#include "orchestrator/base/deadline.h"

namespace dsi::agent {

using protocol::OpRow;

namespace {

constexpr char kProbe[] = "bin/ds-probe";
constexpr int kMostAtOnce = 8;
// How long the process that forks the others may take to kill one of them.
constexpr std::chrono::seconds kKillTime{2};

std::string make_nonce() {
  unsigned char bytes[16];
  if (::getrandom(bytes, sizeof bytes, 0) != sizeof bytes) std::abort();
  std::string text;
  for (unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

int processors() {
  cpu_set_t set;
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

// Those that end a process by what a library does. Not every libc knows sigabbrev_np, and strsignal
// speaks the language of the locale.
std::string signal_name(int number) {
  static constexpr std::pair<int, std::string_view> kNames[] = {
      {SIGABRT, "SIGABRT"}, {SIGALRM, "SIGALRM"}, {SIGBUS, "SIGBUS"},   {SIGFPE, "SIGFPE"},
      {SIGHUP, "SIGHUP"},   {SIGILL, "SIGILL"},   {SIGINT, "SIGINT"},   {SIGKILL, "SIGKILL"},
      {SIGPIPE, "SIGPIPE"}, {SIGQUIT, "SIGQUIT"}, {SIGSEGV, "SIGSEGV"}, {SIGSYS, "SIGSYS"},
      {SIGTERM, "SIGTERM"}, {SIGTRAP, "SIGTRAP"}, {SIGUSR1, "SIGUSR1"}, {SIGUSR2, "SIGUSR2"},
      {SIGXCPU, "SIGXCPU"}, {SIGXFSZ, "SIGXFSZ"},
  };
  for (const auto& [known, name] : kNames) {
    if (known == number) return std::string(name);
  }
  return fmt::format("signal {}", number);
}

// What a process printed last: "terminate called after throwing …" explains an abort.
std::string last_line(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) {
    text.remove_suffix(1);
  }
  text = text.substr(text.find_last_of('\n') + 1);
  return std::string(text.substr(0, 300));
}

std::string file_name(std::string_view path) {
  return std::string(path.substr(path.find_last_of('/') + 1));
}

// The answer's lines: those that begin with the nonce.
struct Answer {
  bool loading = false;
  bool testing = false;
  std::optional<std::string> refused;
  std::string symbol;
  std::optional<std::string> no_test;
  std::optional<int> code;
  std::string detail;
  std::vector<std::string> files;
  bool all_files = false;
};

Answer read_answer(const std::string& text, const std::string& nonce) {
  Answer answer;
  std::string_view rest = text;
  while (!rest.empty()) {
    std::size_t end = rest.find('\n');
    if (end == std::string_view::npos) break;  // A line cut off is no line.
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end + 1);
    if (!line.starts_with(nonce + " ")) continue;
    line.remove_prefix(nonce.size() + 1);
    std::size_t space = std::min(line.find(' '), line.size());
    std::string_view step = line.substr(0, space);
    std::string value(line.substr(std::min(space + 1, line.size())));
    if (step == "load") answer.loading = true;
    if (step == "test") answer.testing = true;
    if (step == "refused") answer.refused = value;
    if (step == "symbol") answer.symbol = value;
    if (step == "no-test") answer.no_test = value;
    if (step == "file") answer.files.push_back(value);
    if (step == "end") answer.all_files = true;
    if (step == "result") {
      char* tail = nullptr;
      long code = std::strtol(value.c_str(), &tail, 10);
      if (tail != value.c_str()) answer.code = static_cast<int>(code);
      answer.detail = *tail == ' ' ? tail + 1 : tail;
    }
  }
  return answer;
}

OpRow with(OpRow row, std::string status, std::string detail) {
  row.status = std::move(status);
  row.detail = std::move(detail);
  return row;
}

// `status`: waitpid's; nothing if the time was up.
OpRow judge(OpRow row, const ManifestOp& op, const Answer& answer, const Output& output,
            std::optional<int> status, std::chrono::seconds timeout, const Torch& torch) {
  if (answer.refused) {
    Verdict verdict = explain_loader(*answer.refused, file_name(op.library), answer.symbol);
    // Symbols that torch does not have are the mark of another torch than the one built against.
    if (verdict.status == "incompatible" && !torch.folder.empty()) {
      verdict.detail += fmt::format(" (this node's torch: {}{}{})", torch.version,
                                    torch.version.empty() ? "" : " in ", torch.folder);
    }
    return with(std::move(row), verdict.status, verdict.detail);
  }
  if (answer.no_test) {
    return with(std::move(row), "incompatible",
                fmt::format("{} has no self-test {}", op.library, *answer.no_test));
  }
  if (answer.code) {
    switch (*answer.code) {
      case 0:
        return with(std::move(row), "ok", answer.detail);
      case 1:
        return with(std::move(row), "wrong", answer.detail);
      case 2:
        return with(std::move(row), "missing", answer.detail);
      case 3:
        return with(std::move(row), "skipped", answer.detail);
      default:
        return with(std::move(row), "wrong",
                    fmt::format("its self-test returned {}: {}", *answer.code, answer.detail));
    }
  }
  std::string_view where = answer.testing ? "in its self-test" : "while it was loaded";
  if (!status) {
    return with(std::move(row), "crash",
                fmt::format("no answer within {} s {}", timeout.count(), where));
  }
  std::string said = last_line(output.out());
  if (!said.empty()) said = ": " + said;
  if (!answer.loading) {
    // The probe itself did not come up: the node's C library is too old for it, or it may not run.
    return with(std::move(row), "incompatible",
                fmt::format("{} does not start on this node{}", kProbe, said));
  }
  if (WIFSIGNALED(*status)) {
    return with(std::move(row), "crash",
                fmt::format("{} {}{}", signal_name(WTERMSIG(*status)), where, said));
  }
  return with(std::move(row), "crash",
              fmt::format("it ended its process with exit code {} {}{}", WEXITSTATUS(*status),
                          where, said));
}

bool needs_torch(const ManifestOp& op) {
  return std::any_of(op.needs_libraries.begin(), op.needs_libraries.end(), is_torch_library);
}

// Whether the row of a forked process stands: ok, missing, skipped and "no answer" do. The others
// are rare, and the reason is to be the one that the op has without what was loaded before.
bool is_final(const Answer& answer, bool timed_out) {
  return timed_out || answer.code == 0 || answer.code == 2 || answer.code == 3;
}

// The row's answer without running anything, if there is one.
std::optional<Verdict> decided(const ManifestOp& op, const Manifest& manifest,
                               const std::vector<Damage>& damage) {
  if (!op.not_built.empty()) return Verdict{"not-built", op.not_built};
  for (const Damage& file : damage) {
    bool its = file.path == op.library || file.path == kProbe;
    // A library of the release that the op's library is linked to.
    for (const std::string& library : op.needs_libraries) its |= file_name(file.path) == library;
    if (its) return Verdict{"damaged", file.text};
  }
  if (manifest.find(kProbe) == nullptr) {
    return Verdict{"skipped", fmt::format("the release has no {}", kProbe)};
  }
  return std::nullopt;
}

}  // namespace

Verdict explain_loader(std::string_view text, std::string_view library, std::string_view symbol) {
  auto has = [&](std::string_view part) { return text.find(part) != std::string_view::npos; };
  std::string_view subject = text.substr(0, text.find(": "));
  constexpr std::string_view kUndefined = "undefined symbol: ";
  if (std::size_t at = text.find(kUndefined); at != std::string_view::npos) {
    std::string_view name = text.substr(at + kUndefined.size());
    name = name.substr(0, name.find_first_of(", "));
    return {"incompatible", fmt::format("{} needs the symbol {}, which no library here has",
                                        file_name(subject), symbol.empty() ? name : symbol)};
  }
  constexpr std::string_view kVersion = "version `";
  if (std::size_t at = text.find(kVersion); at != std::string_view::npos && has("not found")) {
    std::string_view version = text.substr(at + kVersion.size());
    version = version.substr(0, version.find('\''));
    return {"incompatible",
            fmt::format("{} needs {}, which {} does not have", library, version, subject)};
  }
  if (has("cannot open shared object file")) {
    // glibc passes over a file for another machine as if it were not there. This one is: it was
    // verified before it was tried.
    if (has("No such file") && file_name(subject) == library) {
      return {"incompatible",
              fmt::format("{} is for another kind of processor than this node's", library)};
    }
    if (has("No such file")) {
      return {"missing", fmt::format("{} is not on this node", subject)};
    }
    return {"missing", std::string(text)};
  }
  if (has("file too short")) return {"damaged", std::string(text)};
  if (has("failed to map segment")) {
    return {"incompatible", fmt::format("{} (is the file system mounted noexec?)", text)};
  }
  return {"incompatible", std::string(text)};
}

Surroundings look_around(const Manifest& manifest, const std::vector<std::string>& torch_folders) {
  Surroundings found;
  if (std::any_of(manifest.ops.begin(), manifest.ops.end(), needs_torch)) {
    found.torch = find_torch(torch_folders);
  }
  if (found.torch.needs_path) found.library_path = found.torch.folder;
  if (!found.torch.environment.empty()) {
    found.library_path += (found.library_path.empty() ? "" : ":") + found.torch.environment;
  }
  if (const char* before = std::getenv("LD_LIBRARY_PATH"); before != nullptr && *before != 0) {
    found.library_path += (found.library_path.empty() ? "" : ":") + std::string(before);
  }
  return found;
}

namespace {

struct Task {
  std::size_t row;
  const ManifestOp* op;
  bool shared;  // To be forked, if that works.
};

struct Running {
  Task task;
  std::string nonce;
  Deadline deadline;
  std::optional<Child> own;          // Either a process of its own
  std::shared_ptr<ForkedOp> forked;  // or a forked one.
  bool timed_out = false;

  Output& output() { return own ? own->output() : forked->output; }
  std::optional<int> ended() { return own ? own->ended() : forked->status; }
};

class Probing {
 public:
  Probing(const std::string& folder, const Manifest& manifest, const Surroundings& surroundings,
          std::chrono::seconds timeout)
      : folder_(folder),
        manifest_(manifest),
        surroundings_(surroundings),
        timeout_(std::max(std::chrono::seconds(1), timeout)) {
    // Threads that wait in a loop for each other would slow down the neighbours' probes.
    environment_ = {"OMP_WAIT_POLICY=passive", "LC_ALL=C"};
    if (!surroundings.library_path.empty()) {
      environment_.push_back("LD_LIBRARY_PATH=" + surroundings.library_path);
    }
    int cores = processors();
    at_once_ = static_cast<std::size_t>(std::min(cores, kMostAtOnce));
    // Each thread's time counts; wall time is what the deadline is for.
    cpu_seconds_ = static_cast<unsigned long>((timeout_.count() + 1) * cores);
  }

  std::vector<Probed> run(const std::vector<Damage>& damage, const std::vector<OpRow>& known) {
    list_rows(damage, known);
    share();
    while (!waiting_.empty() || !running_.empty()) {
      fill_up();
      wait();
      if (shared_) shared_->update();
      for (auto one = running_.begin(); one != running_.end();) {
        one = look_at(*one) ? running_.erase(one) : std::next(one);
      }
    }
    return std::move(rows_);
  }

 private:
  void list_rows(const std::vector<Damage>& damage, const std::vector<OpRow>& known) {
    for (const ManifestOp& op : manifest_.ops) {
      std::vector<std::string> devices = op.devices;
      if (devices.empty()) devices.emplace_back("cpu");
      for (const std::string& device : devices) {
        auto verdict = decided(op, manifest_, damage);
        auto same = std::find_if(known.begin(), known.end(), [&](const OpRow& row) {
          return row.op == op.name && row.device == device;
        });
        OpRow row{op.name, "", device, ""};
        if (verdict) {
          row = with(std::move(row), verdict->status, verdict->detail);
        } else if (same != known.end()) {
          row = *same;
        } else {
          waiting_.push_back({rows_.size(), &op, needs_torch(op)});
        }
        rows_.push_back({std::move(row), {}});
      }
    }
  }

  // Starts to load what more than one op needs.
  void share() {
    std::set<std::string> libraries;
    auto shared =
        std::count_if(waiting_.begin(), waiting_.end(), [](const Task& one) { return one.shared; });
    if (shared < 2) return give_up_sharing();
    for (const Task& task : waiting_) {
      if (!task.shared) continue;
      libraries.insert(task.op->needs_libraries.begin(), task.op->needs_libraries.end());
    }
    shared_.emplace(folder_ + "/" + kProbe, libraries, environment_, cpu_seconds_,
                    Deadline::after(timeout_));
  }

  void give_up_sharing() {
    shared_.reset();
    for (Task& task : waiting_) task.shared = false;
  }

  void fill_up() {
    if (shared_ && shared_->state() == SharedLoad::State::failed) give_up_sharing();
    bool loading = shared_ && shared_->state() == SharedLoad::State::loading;
    for (auto task = waiting_.begin(); task != waiting_.end();) {
      // Loading takes a processor as an op does.
      if (running_.size() + (loading ? 1 : 0) >= at_once_ && !running_.empty()) return;
      if (task->shared && loading) {
        ++task;
        continue;
      }
      Task next = *task;
      task = waiting_.erase(task);
      start(next);
      if (shared_ && shared_->state() == SharedLoad::State::failed) return;
    }
  }

  void start(const Task& task) {
    OpRow& row = rows_[task.row].row;
    std::string library = folder_ + "/" + task.op->library;
    Running one{task, make_nonce(), Deadline::after(timeout_), {}, {}};
    if (task.shared && shared_->has(task.op->needs_libraries)) {
      one.forked = shared_->start(library, row.op, row.device, one.nonce);
    } else {
      ChildSpec spec;
      spec.argv = {folder_ + "/" + kProbe, library, row.op, row.device};
      spec.environment = environment_;
      spec.environment.push_back("DS_PROBE_NONCE=" + one.nonce);
      spec.cpu_seconds = cpu_seconds_;
      auto child = Child::start(spec);
      if (!child) {
        row = with(row, "skipped", child.error().what);
        return;
      }
      one.own.emplace(*std::move(child));
    }
    running_.push_back(std::move(one));
  }

  void wait() {
    std::vector<pollfd> fds;
    for (Running& one : running_) {
      fds.push_back({one.output().out_fd(), POLLIN, 0});
      fds.push_back({one.output().answer_fd(), POLLIN, 0});
    }
    if (shared_) fds.push_back({shared_->fd(), POLLIN, 0});
    // The end of a process is noticed by the end of its pipes; 20 ms are for one that closed them.
    ::poll(fds.data(), fds.size(), 20);
  }

  // True when it is done with.
  bool look_at(Running& one) {
    one.output().drain();
    auto status = one.ended();
    bool sharing = shared_ && shared_->state() == SharedLoad::State::ready;
    if (!status && one.forked && !sharing) {
      return try_alone(one.task);
    }
    if (!status && !one.deadline.passed()) return false;
    if (!status && one.forked) {
      // Only a process that is killed when asked to has told the truth about this op: it may
      // be the one that forks which was stopped, and not the op that is slow.
      if (!one.timed_out && one.forked->pid > 0) {
        one.timed_out = true;
        one.deadline = Deadline::after(kKillTime);
        shared_->kill(*one.forked);
        return false;
      }
      shared_->abandon();
      return try_alone(one.task);
    }
    one.output().drain();
    if (one.timed_out) status.reset();
    Answer answer = read_answer(one.output().answer(), one.nonce);
    if (one.forked && !is_final(answer, one.timed_out)) return try_alone(one.task);
    Probed& probed = rows_[one.task.row];
    probed.row = judge(probed.row, *one.task.op, answer, one.output(), status, timeout_,
                       surroundings_.torch);
    if (probed.row.status == "ok" && answer.all_files) probed.files = std::move(answer.files);
    return true;
  }

  bool try_alone(Task task) {
    task.shared = false;
    waiting_.push_front(task);
    return true;
  }

  const std::string& folder_;
  const Manifest& manifest_;
  const Surroundings& surroundings_;
  std::chrono::seconds timeout_;
  std::vector<std::string> environment_;
  std::size_t at_once_ = 1;
  unsigned long cpu_seconds_ = 0;
  std::vector<Probed> rows_;
  std::list<Task> waiting_;
  std::optional<SharedLoad> shared_;
  std::list<Running> running_;
};

}  // namespace

std::vector<Probed> probe_ops(const std::string& folder, const Manifest& manifest,
                              const std::vector<Damage>& damage, const Surroundings& surroundings,
                              std::chrono::seconds timeout, const std::vector<OpRow>& known) {
  return Probing(folder, manifest, surroundings, timeout).run(damage, known);
}

}  // namespace dsi::agent

#include "orchestrator/agent/probes.h"

#include <cxxabi.h>
#include <poll.h>
#include <sched.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <list>
#include <memory>
#include <optional>

#include "orchestrator/agent/child.h"
#include "orchestrator/agent/torch.h"
#include "orchestrator/base/deadline.h"

namespace dsi::agent {

using protocol::OpRow;

namespace {

constexpr char kProbe[] = "bin/ds-probe";
constexpr int kMostAtOnce = 8;

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

std::string demangled(const std::string& symbol) {
  int status = 0;
  std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status), std::free);
  return status == 0 && name ? std::string(name.get()) : symbol;
}

std::string signal_name(int number) {
  // sigabbrev_np needs no locale, unlike strsignal.
  const char* name = ::sigabbrev_np(number);
  return name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", number);
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
  std::optional<std::string> no_test;
  std::optional<int> code;
  std::string detail;
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
    if (step == "no-test") answer.no_test = value;
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
OpRow judge(OpRow row, const ManifestOp& op, const Child& child, const std::string& nonce,
            std::optional<int> status, std::chrono::seconds timeout, const Torch& torch) {
  Answer answer = read_answer(child.answer(), nonce);
  if (answer.refused) {
    Verdict verdict = explain_loader(*answer.refused, file_name(op.library));
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
  std::string said = last_line(child.out());
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

bool needs_torch(const Manifest& manifest) {
  for (const ManifestOp& op : manifest.ops) {
    for (const std::string& library : op.needs_libraries) {
      if (library.starts_with("libtorch") || library.starts_with("libc10")) return true;
    }
  }
  return false;
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

Verdict explain_loader(std::string_view text, std::string_view library) {
  auto has = [&](std::string_view part) { return text.find(part) != std::string_view::npos; };
  std::string_view subject = text.substr(0, text.find(": "));
  constexpr std::string_view kUndefined = "undefined symbol: ";
  if (std::size_t at = text.find(kUndefined); at != std::string_view::npos) {
    std::string_view symbol = text.substr(at + kUndefined.size());
    symbol = symbol.substr(0, symbol.find_first_of(", "));
    return {"incompatible", fmt::format("{} needs the symbol {}, which no library here has",
                                        file_name(subject), demangled(std::string(symbol)))};
  }
  constexpr std::string_view kVersion = "version `";
  if (std::size_t at = text.find(kVersion); at != std::string_view::npos && has("not found")) {
    std::string_view version = text.substr(at + kVersion.size());
    version = version.substr(0, version.find('\''));
    return {"incompatible",
            fmt::format("{} needs {}, which {} does not have", library, version, subject)};
  }
  if (has("cannot open shared object file")) {
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

std::vector<OpRow> probe_ops(const std::string& folder, const Manifest& manifest,
                             const std::vector<Damage>& damage, const ProbeSettings& settings) {
  struct Task {
    std::size_t row;
    const ManifestOp* op;
  };
  struct Running {
    Task task;
    Child child;
    std::string nonce;
    Deadline deadline;
  };
  std::vector<OpRow> rows;
  std::vector<Task> waiting;
  for (const ManifestOp& op : manifest.ops) {
    std::vector<std::string> devices = op.devices;
    if (devices.empty()) devices.emplace_back("cpu");
    for (const std::string& device : devices) {
      auto verdict = decided(op, manifest, damage);
      if (!verdict) waiting.push_back({rows.size(), &op});
      rows.push_back(
          {op.name, verdict ? verdict->status : "", device, verdict ? verdict->detail : ""});
    }
  }
  if (waiting.empty()) return rows;
  std::reverse(waiting.begin(), waiting.end());  // Taken from the back.

  Torch torch = needs_torch(manifest) ? find_torch(settings.torch_folders) : Torch{};
  std::string path = torch.needs_path ? torch.folder : std::string();
  if (const char* before = std::getenv("LD_LIBRARY_PATH"); before != nullptr && *before != 0) {
    path += (path.empty() ? "" : ":") + std::string(before);
  }
  int cores = processors();
  std::size_t at_once = static_cast<std::size_t>(std::min(cores, kMostAtOnce));
  auto seconds = static_cast<unsigned long>(std::max<long>(1, settings.timeout.count()));

  std::list<Running> running;
  while (!waiting.empty() || !running.empty()) {
    while (!waiting.empty() && running.size() < at_once) {
      Task task = waiting.back();
      waiting.pop_back();
      OpRow& row = rows[task.row];
      std::string nonce = make_nonce();
      ChildSpec spec;
      spec.argv = {folder + "/" + kProbe, folder + "/" + task.op->library, row.op, row.device};
      // Threads that wait in a loop for each other would slow down the neighbours' probes.
      spec.environment = {"DS_PROBE_NONCE=" + nonce, "OMP_WAIT_POLICY=passive", "LC_ALL=C"};
      if (!path.empty()) spec.environment.push_back("LD_LIBRARY_PATH=" + path);
      // Each thread's time counts; wall time is what the deadline is for.
      spec.cpu_seconds = (seconds + 1) * static_cast<unsigned long>(cores);
      auto child = Child::start(spec);
      if (!child) {
        row = with(row, "skipped", child.error().what);
        continue;
      }
      running.push_back({task, *std::move(child), std::move(nonce),
                         Deadline::after(std::chrono::seconds(seconds))});
    }
    std::vector<pollfd> fds;
    for (const Running& one : running) {
      fds.push_back({one.child.out_fd(), POLLIN, 0});
      fds.push_back({one.child.answer_fd(), POLLIN, 0});
    }
    // The end of a process is noticed by the end of its pipes; 20 ms are for one that closed them.
    ::poll(fds.data(), fds.size(), 20);
    for (auto one = running.begin(); one != running.end();) {
      one->child.drain();
      auto status = one->child.ended();
      if (!status && !one->deadline.passed()) {
        ++one;
        continue;
      }
      one->child.drain();
      OpRow& row = rows[one->task.row];
      row = judge(row, *one->task.op, one->child, one->nonce, status, std::chrono::seconds(seconds),
                  torch);
      one = running.erase(one);
    }
  }
  return rows;
}

}  // namespace dsi::agent

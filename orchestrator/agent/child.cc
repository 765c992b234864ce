#include "orchestrator/agent/child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "orchestrator/base/deadline.h"

extern char** environ;

namespace dsi::agent {

namespace {

constexpr std::size_t kOutputKept = 4096;
constexpr std::size_t kAnswerKept = 1024 * 1024;

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

Result<Pipe> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return fail_errno(errno, "cannot make a pipe");
  Pipe pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
  ::fcntl(pipe.read.get(), F_SETFL, O_NONBLOCK);
  return pipe;
}

std::string name_of(std::string_view assignment) {
  return std::string(assignment.substr(0, assignment.find('=')));
}

// Only calls that are safe between fork and exec.
[[noreturn]] void become(char** argv, char** environment, pid_t parent, int input, int out,
                         int answer, const ChildSpec& spec) {
  if (spec.new_session) {
    ::setsid();
  } else {
    ::setpgid(0, 0);
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(126);
  ::umask(022);
  ::signal(SIGPIPE, SIG_DFL);
  rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  if (spec.cpu_seconds != 0) {
    rlimit cpu{spec.cpu_seconds, spec.cpu_seconds + 1};
    ::setrlimit(RLIMIT_CPU, &cpu);
  }
  // The descriptors were made above 9, so none overwrites another.
  if (::dup2(input, 0) < 0 || ::dup2(out, 1) < 0 || ::dup2(out, 2) < 0 || ::dup2(answer, 3) < 0 ||
      ::chdir("/") != 0) {
    ::_exit(126);
  }
  if (spec.instead) {
    spec.instead();
    ::_exit(0);
  }
  ::execvpe(argv[0], argv, environment);
  ::_exit(127);
}

Result<UniqueFd> above_nine(const UniqueFd& fd) {
  UniqueFd high(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 10));
  if (!high) return fail_errno(errno, "cannot copy a descriptor");
  return high;
}

void read_available(UniqueFd& fd, std::string& into) {
  char buffer[4096];
  while (fd) {
    ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
    if (n > 0) {
      into.append(buffer, static_cast<std::size_t>(n));
      if (into.size() > 2 * kAnswerKept) return;  // The caller trims; a flood waits its turn.
    } else if (n == 0) {
      fd.reset();
    } else if (errno != EINTR) {
      return;
    }
  }
}

}  // namespace

Result<Output> Output::make(UniqueFd& out, UniqueFd& answer) {
  DSI_TRY(Pipe out_pipe, make_pipe());
  DSI_TRY(Pipe answer_pipe, make_pipe());
  DSI_TRY(out, above_nine(out_pipe.write));
  DSI_TRY(answer, above_nine(answer_pipe.write));
  Output output;
  output.out_ = std::move(out_pipe.read);
  output.answer_ = std::move(answer_pipe.read);
  return output;
}

void Output::drain() {
  read_available(out_, output_);
  if (output_.size() > kOutputKept) output_.erase(0, output_.size() - kOutputKept);
  read_available(answer_, answers_);
  if (answers_.size() > kAnswerKept) answers_.resize(kAnswerKept);
}

Result<Child> Child::start(const ChildSpec& spec) {
  UniqueFd out_high;
  UniqueFd answer_high;
  DSI_TRY(Output output, Output::make(out_high, answer_high));
  UniqueFd input(spec.input >= 0 ? ::fcntl(spec.input, F_DUPFD_CLOEXEC, 10)
                                 : ::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!input) return fail_errno(errno, "cannot open /dev/null");
  DSI_TRY(UniqueFd input_high, above_nine(input));

  std::vector<std::string> environment = spec.environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    bool replaced = false;
    for (const std::string& ours : spec.environment) replaced |= name_of(ours) == name_of(*entry);
    if (!replaced) environment.emplace_back(*entry);
  }
  auto pointers = [](const std::vector<std::string>& words) {
    std::vector<char*> list;
    for (const std::string& word : words) list.push_back(const_cast<char*>(word.c_str()));
    list.push_back(nullptr);
    return list;
  };
  std::vector<char*> argv = pointers(spec.argv);
  std::vector<char*> envp = pointers(environment);

  pid_t parent = ::getpid();
  pid_t pid = ::fork();
  if (pid < 0) return fail_errno(errno, "cannot start a process");
  if (pid == 0) {
    become(argv.data(), envp.data(), parent, input_high.get(), out_high.get(), answer_high.get(),
           spec);
  }
  // Both sides: whoever is first. EACCES after the exec means it is done. A session's first process
  // leads its group by itself, and may not lead one before.
  if (!spec.new_session) ::setpgid(pid, pid);
  Child child;
  child.pid_ = pid;
  child.group_ = pid;
  child.output_ = std::move(output);
  return child;
}

Child::Child(Child&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      group_(std::exchange(other.group_, -1)),
      output_(std::move(other.output_)) {}

Child::~Child() {
  if (group_ > 0) kill_group();
  // A process in an uninterruptible wait cannot be killed: it is left to init, not waited for.
  for (int i = 0; pid_ > 0 && !ended() && i < 200; ++i) ::usleep(10'000);
}

std::optional<int> Child::ended() {
  int status = 0;
  if (pid_ < 0) return std::nullopt;
  pid_t done = ::waitpid(pid_, &status, WNOHANG);
  if (done != pid_) return std::nullopt;
  // Before the group's number can be given to another: what the child left running goes, too.
  kill_group();
  group_ = -1;
  pid_ = -1;
  return status;
}

void Child::kill_group() {
  if (group_ > 0) ::kill(-group_, SIGKILL);
}

Result<Ran> run_child(const ChildSpec& spec, std::chrono::seconds time) {
  DSI_TRY(Child child, Child::start(spec));
  Deadline deadline = Deadline::after(time);
  Ran ran;
  for (;;) {
    pollfd fds[] = {{child.out_fd(), POLLIN, 0}, {child.output().answer_fd(), POLLIN, 0}};
    ::poll(fds, 2, 20);
    child.drain();
    auto status = child.ended();
    ran.timed_out = !status && deadline.passed();
    if (!status && !ran.timed_out) continue;
    child.drain();
    ran.status = status.value_or(0);
    ran.out = child.out();
    ran.answer = child.output().answer();
    return ran;
  }
}

void Child::signal(int number) {
  if (pid_ > 0) ::kill(pid_, number);
}

}  // namespace dsi::agent

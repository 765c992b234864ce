#include "orchestrator/adapters/local_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "orchestrator/adapters/spawn.h"
#include "orchestrator/adapters/stop_wait.h"
#include "orchestrator/base/file.h"
#include "orchestrator/base/shell_quote.h"
#include "orchestrator/base/unique_fd.h"

namespace dsi {
namespace {

// Hands out whole lines; a last line without a newline comes at the end.
class LineSplitter {
 public:
  explicit LineSplitter(const ProcessRunner::OnLine& on_line) : on_line_(on_line) {}

  void add(std::string_view data) {
    if (!on_line_) return;
    for (std::size_t end; (end = data.find('\n')) != std::string_view::npos;) {
      partial_ += data.substr(0, end);
      on_line_(partial_);
      partial_.clear();
      data.remove_prefix(end + 1);
    }
    partial_ += data;
  }
  void finish() {
    if (on_line_ && !partial_.empty()) on_line_(partial_);
    partial_.clear();
  }

 private:
  const ProcessRunner::OnLine& on_line_;
  std::string partial_;
};

}  // namespace

Result<ProcessResult> LocalProcessRunner::run(const Command& command, Deadline deadline,
                                              std::stop_token stop, const OnLine& on_line) {
  std::string name = command.argv.empty() ? "" : command.argv[0];
  StopWait waiter(stop);
  if (waiter.stopped()) return fail("{} was not started: interrupted", name);

  // A file and no pipe: who does not read it keeps nobody waiting.
  UniqueFd in(command.input.empty() ? ::open("/dev/null", O_RDONLY | O_CLOEXEC)
                                    : ::memfd_create("input", MFD_CLOEXEC));
  if (!in) return fail_errno(errno, "cannot open an input");
  if (!command.input.empty()) {
    DSI_CHECK(write_all(in.get(), command.input));
    if (::lseek(in.get(), 0, SEEK_SET) != 0) return fail_errno(errno, "cannot rewind an input");
  }
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return fail_errno(errno, "cannot make a pipe");
  UniqueFd out(ends[0]);
  UniqueFd out_there(ends[1]);
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return fail_errno(errno, "cannot make a pipe");
  UniqueFd err(ends[0]);
  UniqueFd err_there(ends[1]);
  DSI_TRY(pid_t pid, spawn({.argv = command.argv,
                            .folder = command.folder,
                            .environment = command.environment,
                            .in = in.get(),
                            .out = out_there.get(),
                            .err = err_there.get()}));
  out_there.reset();
  err_there.reset();

  // The pidfd tells of the end itself: a process that closed its streams may run on, and one that
  // left a daemon behind with the pipes open has ended all the same.
  UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  ProcessResult result;
  LineSplitter lines(on_line);
  std::array<char, 64 * 1024> buffer{};
  auto take = [&](UniqueFd& fd, std::string& text, bool is_out) {
    ssize_t n = ::read(fd.get(), buffer.data(), buffer.size());
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return false;
    if (n <= 0) {
      fd.reset();
      return false;
    }
    std::string_view got(buffer.data(), static_cast<std::size_t>(n));
    text += got;
    if (is_out) lines.add(got);
    return true;
  };

  bool ended = !process;  // Without pidfds (Linux before 5.3) the end of the streams has to do.
  while (!ended || (!process && (out || err))) {
    std::array<pollfd, 3> fds{
        {{out.get(), POLLIN, 0}, {err.get(), POLLIN, 0}, {process.get(), POLLIN, 0}}};
    StopWait::Outcome outcome = waiter.wait(fds, deadline);
    if (outcome != StopWait::Outcome::kReady) {
      end_process_group(pid);
      std::string what =
          outcome == StopWait::Outcome::kStopped ? "was interrupted" : "did not end in time";
      return fail("{} {}", shell_join(command.argv), what);
    }
    if (fds[0].revents != 0) take(out, result.out, true);
    if (fds[1].revents != 0) take(err, result.err, false);
    if (fds[2].revents != 0) ended = true;
  }
  // What it wrote before it ended is still in the pipes.
  for (UniqueFd* fd : {&out, &err}) {
    if (*fd) ::fcntl(fd->get(), F_SETFL, O_NONBLOCK);
  }
  while (out && take(out, result.out, true)) {
  }
  while (err && take(err, result.err, false)) {
  }
  lines.finish();

  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status)) {
    result.signal = WTERMSIG(status);
  } else {
    result.exit_code = WEXITSTATUS(status);
  }
  return result;
}

}  // namespace dsi

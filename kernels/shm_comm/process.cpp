#include "process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace ds {
namespace {

struct Stat {
  char state = '\0';  // 'Z': a zombie. '\0': could not be read.
  std::uint64_t start_time = 0;
};

Stat stat_of(std::int32_t pid) {
  char path[40];
  std::snprintf(path, sizeof path, "/proc/%d/stat", pid);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  char text[1024];
  const ssize_t got = read(fd, text, sizeof text - 1);
  close(fd);
  if (got <= 0) return {};
  text[got] = '\0';
  // The second field is the program's name in parentheses, with whatever characters it has.
  const char* at = std::strrchr(text, ')');
  if (at == nullptr || at[1] != ' ') return {};
  at += 2;
  Stat stat;
  stat.state = *at;
  for (int field = 3; field < 22; ++field) {
    at = std::strchr(at, ' ');
    if (at == nullptr) return {};
    ++at;
  }
  stat.start_time = std::strtoull(at, nullptr, 10);
  return stat;
}

std::uint64_t own_pid_namespace() {
  struct stat info {};
  return stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

// 1: ended, 0: runs, -1: this kernel or sandbox does not say.
int ended_by_descriptor([[maybe_unused]] std::int32_t pid) {
#ifdef SYS_pidfd_open
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (fd < 0) return errno == ESRCH ? 1 : -1;
  pollfd poll_fd{fd, POLLIN, 0};
  const bool ended = poll(&poll_fd, 1, 0) == 1;
  close(fd);
  return ended ? 1 : 0;
#else
  return -1;
#endif
}

}  // namespace

ProcessIdentity this_process() {
  const pid_t pid = getpid();
  return {pid, stat_of(pid).start_time, own_pid_namespace()};
}

bool has_ended(const ProcessIdentity& process) {
  if (process.pid_namespace != own_pid_namespace()) return false;
  if (process.pid == getpid()) return false;
  const int ended = ended_by_descriptor(process.pid);
  if (ended == 1) return true;
  if (ended < 0 && kill(process.pid, 0) != 0 && errno == ESRCH) return true;
  const Stat now = stat_of(process.pid);
  if (now.state == '\0') return false;
  // The descriptor knows better than the state, which is that of the first thread only.
  if (ended < 0 && (now.state == 'Z' || now.state == 'X')) return true;
  return process.start_time != 0 && now.start_time != process.start_time;
}

}  // namespace ds

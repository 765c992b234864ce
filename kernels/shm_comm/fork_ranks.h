#pragma once

// Ranks as processes, for the tests.

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "shm_comm.h"

namespace ds {

struct Closer {
  void operator()(ShmComm* comm) const { shm_comm_close(comm); }
};
using ShmCommPtr = std::unique_ptr<ShmComm, Closer>;

inline ShmCommPtr open_group(ShmCommOptions options, int rank) {
  options.rank = rank;
  return ShmCommPtr(shm_comm_open(options));
}

inline ShmCommOptions group_of(int size, std::int64_t slot_bytes = 0) {
  ShmCommOptions options;
  options.name = shm_comm_new_name();
  options.size = size;
  options.slot_bytes = slot_bytes;
  // No test waits that long: whatever ends earlier did not end by the time limit.
  options.timeout = std::chrono::seconds(200);
  return options;
}

// "" if `body` returns, else what it throws. A system_error has its code before it: "ECONNRESET:
// …".
inline std::string thrown_by(const std::function<void()>& body) {
  try {
    body();
    return "";
  } catch (const std::system_error& error) {
    return std::string(strerrorname_np(error.code().value())) + ": " + error.what();
  } catch (const std::exception& error) {
    return error.what();
  }
}

class Ranks {
 public:
  // body(rank) in a process each; what it returns is what it found wrong.
  Ranks(int size, const std::function<std::string(int)>& body) {
    for (int rank = 0; rank < size; ++rank) {
      int ends[2];
      if (pipe(ends) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
      const pid_t pid = fork();
      if (pid == 0) {
        close(ends[0]);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(250);  // One that waits for ever is a failure, not a hang.
        std::string text;
        const std::string thrown = thrown_by([&] { text = body(rank); });
        if (!thrown.empty()) text = "threw " + thrown;
        if (write(ends[1], text.data(), text.size()) < 0) _exit(1);
        _exit(0);
      }
      close(ends[1]);
      processes_.push_back({pid, ends[0], false});
    }
  }
  ~Ranks() {
    for (Process& process : processes_) {
      if (!process.reaped) {
        kill(process.pid, SIGKILL);
        waitpid(process.pid, nullptr, 0);
      }
      close(process.text);
    }
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  pid_t pid(int rank) const { return processes_[static_cast<std::size_t>(rank)].pid; }

  // What the rank returned, or "signal 9". Waits for its end.
  std::string text(int rank) {
    Process& process = processes_[static_cast<std::size_t>(rank)];
    std::string text;
    char part[4096];
    for (ssize_t got; (got = read(process.text, part, sizeof part)) > 0;) {
      text.append(part, static_cast<std::size_t>(got));
    }
    int status = 0;
    waitpid(process.pid, &status, 0);
    process.reaped = true;
    if (WIFSIGNALED(status)) return "signal " + std::to_string(WTERMSIG(status));
    return text;
  }

  void expect_all_right() {
    for (int rank = 0; rank < static_cast<int>(processes_.size()); ++rank) {
      EXPECT_EQ(text(rank), "") << "rank " << rank;
    }
  }

 private:
  struct Process {
    pid_t pid;
    int text;
    bool reaped;
  };
  std::vector<Process> processes_;
};

// Whether the name of a group stands in the file system.
inline bool is_left_behind(const std::string& name) {
  DIR* const folder = opendir("/dev/shm");
  if (folder == nullptr) return false;
  bool found = false;
  const std::string wanted = "ds-shm-" + std::to_string(geteuid()) + "-" + name;
  while (const dirent* const entry = readdir(folder)) {
    found = found || std::string(entry->d_name) == wanted;
  }
  closedir(folder);
  return found;
}

// Until rank 0 has made the memory of that name ready: its first word is written last.
inline void wait_for_rank_0(const std::string& name) {
  const std::string path = "/ds-shm-" + std::to_string(geteuid()) + "-" + name;
  for (unsigned first = 0; first == 0; usleep(1000)) {
    const int fd = shm_open(path.c_str(), O_RDONLY, 0);
    if (fd < 0) continue;
    if (pread(fd, &first, sizeof first, 0) != sizeof first) first = 0;
    close(fd);
  }
}

}  // namespace ds

#include "orchestrator/adapters/spawn.h"

#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <thread>

#include "orchestrator/base/deadline.h"

extern char** environ;

namespace dsi {
namespace {

std::vector<std::string> merged_environment(
    const std::vector<std::pair<std::string, std::string>>& added) {
  std::vector<std::string> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    std::string text = *entry;
    std::string name = text.substr(0, text.find('='));
    bool replaced = false;
    for (const auto& [key, value] : added) replaced = replaced || key == name;
    if (!replaced) merged.push_back(std::move(text));
  }
  for (const auto& [key, value] : added) merged.push_back(key + "=" + value);
  return merged;
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

struct Actions {
  posix_spawn_file_actions_t value;
  Actions() { posix_spawn_file_actions_init(&value); }
  ~Actions() { posix_spawn_file_actions_destroy(&value); }
  Actions(const Actions&) = delete;
  Actions& operator=(const Actions&) = delete;
};

struct Attributes {
  posix_spawnattr_t value;
  Attributes() { posix_spawnattr_init(&value); }
  ~Attributes() { posix_spawnattr_destroy(&value); }
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;
};

}  // namespace

// posix_spawn and not fork: the program has many threads and may hold much memory; glibc's is a
// vfork that reports a missing program as the return value.
Result<pid_t> spawn(const SpawnRequest& request) {
  if (request.argv.empty()) return fail("cannot start a program without a name");
  Actions actions;
  // dup2 onto 0..2 clears close-on-exec. A source that is itself 0..2 could be overwritten before
  // it is used, so callers give descriptors above 2 (every one here is opened while 0..2 exist).
  posix_spawn_file_actions_adddup2(&actions.value, request.in, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions.value, request.out, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions.value, request.err, STDERR_FILENO);
  // Everything of ours is close-on-exec; what a library opened without it is closed here.
  posix_spawn_file_actions_addclosefrom_np(&actions.value, STDERR_FILENO + 1);
  if (!request.folder.empty()) {
    posix_spawn_file_actions_addchdir_np(&actions.value, request.folder.c_str());
  }

  Attributes attributes;
  sigset_t none;
  sigemptyset(&none);
  sigset_t usual;
  sigemptyset(&usual);
  for (int signal : {SIGPIPE, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGCHLD}) sigaddset(&usual, signal);
  posix_spawnattr_setpgroup(&attributes.value, 0);
  posix_spawnattr_setsigmask(&attributes.value, &none);
  posix_spawnattr_setsigdefault(&attributes.value, &usual);
  posix_spawnattr_setflags(&attributes.value,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);

  std::vector<std::string> environment = merged_environment(request.environment);
  std::vector<char*> argv = pointers(request.argv);
  std::vector<char*> envp = pointers(environment);
  pid_t pid = -1;
  int error =
      posix_spawnp(&pid, argv[0], &actions.value, &attributes.value, argv.data(), envp.data());
  if (error != 0) {
    // With a folder, ENOENT may mean the folder: say which.
    if (!request.folder.empty() && ::access(request.folder.c_str(), X_OK) != 0) {
      return fail_errno(
          errno, fmt::format("cannot start {} in {}", request.argv[0], request.folder.string()));
    }
    return fail_errno(error, fmt::format("cannot start {}", request.argv[0]));
  }
  return pid;
}

int end_process_group(pid_t leader) {
  int status = 0;
  auto reaped = [&](int options) {
    pid_t got = 0;
    do {
      got = ::waitpid(leader, &status, options);
    } while (got < 0 && errno == EINTR);
    return got != 0;
  };
  ::kill(-leader, SIGTERM);
  Deadline patience = Deadline::after(std::chrono::seconds(2));
  bool gone = false;
  while (!(gone = reaped(WNOHANG)) && !patience.passed()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  // Also when the leader went in time: its children may have ignored SIGTERM. A group whose last
  // process is gone gives ESRCH; the number cannot be in use again while a member lives.
  ::kill(-leader, SIGKILL);
  if (!gone) reaped(0);
  return status;
}

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? name : std::to_string(signal);
}

}  // namespace dsi

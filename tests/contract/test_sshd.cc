#include "tests/contract/test_sshd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "orchestrator/adapters/local_process.h"
#include "orchestrator/adapters/spawn.h"
#include "orchestrator/base/deadline.h"
#include "orchestrator/base/file.h"
#include "orchestrator/base/shell_quote.h"

namespace dsi {

TestFolder::TestFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "dsi-test.XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) ADD_FAILURE() << "no temporary folder";
  path_ = pattern;
}

TestFolder::~TestFolder() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

std::string shell(const std::string& line) {
  LocalProcessRunner runner;
  auto result = runner.run({.argv = {"/bin/sh", "-c", line}, .folder = {}, .environment = {}},
                           Deadline::after(std::chrono::seconds(60)), {});
  if (!result || !result->ok()) {
    ADD_FAILURE() << line << "\n" << (result ? result->err : result.error().what);
    return {};
  }
  return result->out;
}

void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::uint16_t free_port() {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size);
  ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

TestSshd::TestSshd(const std::string& extra) {
  // sshd's place for its unprivileged child; only root's sshd wants it.
  if (::geteuid() == 0) ::mkdir("/run/sshd", 0755);
  std::filesystem::create_directories(home() / ".ssh");
  std::string quoted = shell_quote(folder().string());
  shell(
      fmt::format("ssh-keygen -q -t ed25519 -N '' -f {}/host_key && "
                  "ssh-keygen -q -t ed25519 -N '' -f {}/home/.ssh/id_ed25519 && "
                  "cp {}/home/.ssh/id_ed25519.pub {}/authorized_keys",
                  quoted, quoted, quoted, quoted));
  port_ = free_port();
  // First value wins, so `extra` comes first.
  write_text(folder() / "sshd_config",
             fmt::format("{}\n"
                         "ListenAddress 127.0.0.1:{}\n"
                         "HostKey {}/host_key\n"
                         "AuthorizedKeysFile {}/authorized_keys\n"
                         "PermitRootLogin yes\nStrictModes no\nUsePAM no\nPidFile none\n"
                         "PasswordAuthentication no\nKbdInteractiveAuthentication no\n"
                         // The login shell then reads no start-up file of whoever runs the tests.
                         "SetEnv HOME={}\n"
                         "LogLevel VERBOSE\nUseDNS no\n",
                         extra, port_, folder().string(), folder().string(), folder().string()));
  set_known_hosts(fmt::format("[127.0.0.1]:{} {}\n", port_, host_key()));
  set_config("");
  UniqueFd log(
      ::open((folder() / "sshd.log").c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0644));
  UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  auto pid =
      spawn({.argv = {"/usr/sbin/sshd", "-D", "-e", "-f", (folder() / "sshd_config").string()},
             .folder = {},
             .environment = {},
             .in = null.get(),
             .out = log.get(),
             .err = log.get()});
  if (!pid) {
    ADD_FAILURE() << pid.error().what;
    return;
  }
  pid_ = *pid;
  // Not by connecting: a bare probe would count against MaxStartups.
  Deadline deadline = Deadline::after(std::chrono::seconds(20));
  while (this->log().find("Server listening") == std::string::npos) {
    if (deadline.passed()) {
      ADD_FAILURE() << "sshd does not start: " << this->log();
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

TestSshd::~TestSshd() {
  if (pid_ <= 0) return;
  // Session processes are in sessions of their own, and may be stopped.
  for (pid_t pid : session_processes()) ::kill(pid, SIGKILL);
  ::kill(pid_, SIGCONT);
  end_process_group(pid_);
}

std::string TestSshd::host_key() const {
  std::istringstream line(read_file(folder() / "host_key.pub").value_or(""));
  std::string type;
  std::string key;
  line >> type >> key;
  return type + " " + key;
}

SshOptions TestSshd::options() const {
  SshOptions options;
  options.locations.home = home();
  options.locations.config = home() / ".ssh/config";
  options.locations.agent_socket.clear();
  return options;
}

void TestSshd::set_known_hosts(const std::string& text) const {
  write_text(home() / ".ssh/known_hosts", text);
}

void TestSshd::set_config(const std::string& text) const {
  write_text(home() / ".ssh/config", text);
}

std::vector<pid_t> TestSshd::session_processes() const {
  // Children and grandchildren of the listener that are still sshd.
  std::vector<pid_t> found;
  std::vector<pid_t> parents = {pid_};
  while (!parents.empty()) {
    pid_t parent = parents.back();
    parents.pop_back();
    std::ifstream children(fmt::format("/proc/{}/task/{}/children", parent, parent));
    for (pid_t child = 0; children >> child;) {
      std::string name = read_file(fmt::format("/proc/{}/comm", child)).value_or("");
      if (name.starts_with("sshd")) {
        found.push_back(child);
        parents.push_back(child);
      }
    }
  }
  return found;
}

std::string TestSshd::log() const {
  return read_file(folder() / "sshd.log").value_or("");
}

}  // namespace dsi

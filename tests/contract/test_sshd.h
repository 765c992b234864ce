#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "orchestrator/adapters/ssh_host.h"
#include "orchestrator/base/unique_fd.h"

namespace dsi {

// A folder that goes away with the test.
class TestFolder {
 public:
  TestFolder();
  ~TestFolder();
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Runs a command line by sh; its output. Fails the test if it fails.
std::string shell(const std::string& line);
void write_text(const std::filesystem::path& path, const std::string& text);

// A port of 127.0.0.1 that nobody listens on.
std::uint16_t free_port();

// A real sshd on 127.0.0.1 with its own host key, and a client's home folder whose key it accepts
// and whose known_hosts knows it.
class TestSshd {
 public:
  // `extra`: lines for sshd_config.
  explicit TestSshd(const std::string& extra = "");
  ~TestSshd();
  TestSshd(const TestSshd&) = delete;
  TestSshd& operator=(const TestSshd&) = delete;

  std::uint16_t port() const { return port_; }
  Host host() const { return {.name = "127.0.0.1", .user = {}, .port = port_}; }
  const std::filesystem::path& folder() const { return folder_.path(); }
  std::filesystem::path home() const { return folder() / "home"; }
  std::filesystem::path client_key() const { return home() / ".ssh/id_ed25519"; }
  std::string host_key() const;  // "ssh-ed25519 AAAA…"
  SshOptions options() const;    // With home() as home, and no agent.
  void set_known_hosts(const std::string& text) const;
  void set_config(const std::string& text) const;
  pid_t pid() const { return pid_; }
  std::vector<pid_t> session_processes() const;  // The sshd processes that serve connections.
  std::string log() const;

 private:
  TestFolder folder_;
  std::uint16_t port_ = 0;
  pid_t pid_ = -1;
};

}  // namespace dsi

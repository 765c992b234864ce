#pragma once

// A small head: speaks the protocol with a real agent over pipes. It keeps to the rules unless a
// test breaks one on purpose.

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "orchestrator/agent/protocol.h"
#include "orchestrator/base/unique_fd.h"
#include "orchestrator/manifest.h"

namespace dsi::testing {

// A folder under $TMPDIR that goes with the test.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// A release in memory.
struct TestRelease {
  Manifest manifest;
  std::map<std::string, std::string> contents;  // By digest.

  void add_file(const std::string& path, std::string content, std::uint32_t mode = 0644);
  ManifestOp& add_op(const std::string& name, const std::filesystem::path& library);
  std::string text() const { return manifest.to_json(); }
  std::string id() const { return release_id(text()); }
};

std::string compress(std::string_view data);
std::string slurp(const std::filesystem::path& path);

struct HeadSettings {
  std::vector<std::string> before;  // Words before the agent's: strace and its options.
  std::function<void()> in_child;   // Between fork and exec: umask, limits, user.
};

class Head {
 public:
  Head(const std::string& agent, const std::filesystem::path& prefix,
       const HeadSettings& settings = {});
  ~Head();

  const protocol::Hello& hello() const { return hello_; }
  bool connected() const { return connected_; }

  void send_raw(std::string_view bytes);
  void send(std::string_view type, nlohmann::json body) {
    send_raw(protocol::json_frame(type, std::move(body)));
  }
  // Header, data and all, of a file as the release has it.
  void send_file(const std::string& digest, const std::string& content);
  // The next message; nothing if the agent is gone or does not answer within 60 s.
  std::optional<protocol::Message> receive();
  // The same within `wait`, at once if it is here; `gone` says that none will come any more.
  std::optional<protocol::Message> receive_within(std::chrono::milliseconds wait, bool& gone);
  int from_fd() const { return from_.get(); }
  // Reads up to the result. Stages that come before are noted.
  std::optional<protocol::HostResult> result();

  // The whole conversation. Nothing if the agent died or this head left on the way.
  std::optional<protocol::HostResult> install(const TestRelease& release,
                                              protocol::InstallRequest request = {});
  std::optional<protocol::HostResult> rollback();
  std::optional<protocol::HostResult> uninstall();
  std::optional<protocol::HostResult> report(int probe_timeout_s = 60);

  // Leaves after so many writes, as if it had been killed there.
  void leave_after(int writes) { writes_left_ = writes; }
  void leave();  // Closes both pipes.
  void kill();   // kill -9.
  int wait();    // waitpid's status.
  pid_t pid() const { return pid_; }

  const std::vector<std::string>& stages() const { return stages_; }
  // Called with each stage as it is heard.
  void on_stage(std::function<void(const std::string&)> call) { on_stage_ = std::move(call); }
  std::size_t files_sent() const { return files_sent_; }
  bool left() const { return !to_; }

 private:
  pid_t pid_ = -1;
  UniqueFd to_;
  UniqueFd from_;
  protocol::FrameReader reader_;
  protocol::Hello hello_;
  bool connected_ = false;
  int writes_left_ = std::numeric_limits<int>::max();
  void note_stage(const protocol::Message& message);

  std::vector<std::string> stages_;
  std::function<void(const std::string&)> on_stage_;
  std::size_t files_sent_ = 0;
};

}  // namespace dsi::testing

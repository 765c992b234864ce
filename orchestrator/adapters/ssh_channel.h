#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "orchestrator/adapters/ssh_raii.h"
#include "orchestrator/adapters/tail.h"
#include "orchestrator/ports/remote_host.h"

namespace dsi {

class SshHost;

// One command on a host, over the host's session. Like the session it is used by one thread at a
// time, and it must not outlive it. Included by this room's .cc files only.
class SshChannel : public Channel {
 public:
  SshChannel(SshHost& host, std::string command) : host_(host), command_(std::move(command)) {}
  ~SshChannel() override;
  SshChannel(const SshChannel&) = delete;
  SshChannel& operator=(const SshChannel&) = delete;

  enum class Opened { kYes, kRefused };
  Result<Opened> open(Deadline deadline);

  Result<std::size_t> read(std::span<char> buffer, Deadline deadline) override;
  Result<bool> readable(int wake, Deadline deadline) override;
  Result<void> write(std::string_view data, Deadline deadline) override;
  Result<void> close_stdin() override;
  Result<Exit> wait(Deadline deadline) override;
  std::string standard_error() const override { return err_.text(); }

 private:
  void take_stderr();
  // What libssh has of standard output, without waiting: bytes, 0 for none yet, or nothing at EOF.
  Result<std::optional<std::size_t>> take_stdout(std::span<char> buffer);
  Result<void> read_ahead();

  SshHost& host_;
  std::string command_;
  SshChannelHandle channel_;
  ssh_channel_callbacks_struct callbacks_{};
  std::string ahead_;         // Output that came while write() waited.
  std::size_t ahead_at_ = 0;  // How much of it read() has handed out.
  Tail err_;
  std::optional<int> exit_code_;
  std::string exit_signal_;
};

}  // namespace dsi

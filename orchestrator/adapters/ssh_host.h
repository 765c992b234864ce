#pragma once

#include <chrono>
#include <cstddef>
#include <memory>

#include "orchestrator/adapters/ssh_config.h"
#include "orchestrator/ports/remote_host.h"

namespace dsi {

struct SshOptions {
  SshLocations locations = SshLocations::from_environment();
  // From the accepted connection to the server's first line.
  std::chrono::milliseconds banner_patience = std::chrono::seconds(10);
  // For each answer of the ssh agent. A key that wants a touch or a confirmation needs seconds.
  std::chrono::milliseconds agent_patience = std::chrono::seconds(10);
  // Handshakes at once against one (address, port); sshd drops from ten on.
  int handshakes_per_server = 8;
  // Silence after which a keepalive is sent while a call waits.
  std::chrono::milliseconds keepalive_after = std::chrono::seconds(15);
};

// Hosts over SSH, by libssh. Host keys are checked strictly and never recorded; keys and an agent
// log in, passwords never. Configuration, known_hosts and keys are read once, by the first
// connect(). What becomes of the connection is decided per host: no failure touches another one.
class SshConnector : public Connector {
 public:
  explicit SshConnector(SshOptions options = {});
  ~SshConnector() override;

  tl::expected<std::unique_ptr<RemoteHost>, ConnectError> connect(const Host& host,
                                                                  Deadline deadline,
                                                                  std::stop_token stop) override;

 private:
  struct Shared;
  std::unique_ptr<Shared> shared_;
};

}  // namespace dsi

#pragma once

#include "orchestrator/ports/remote_host.h"

namespace dsi {

// This machine as if it were a remote host: commands run by /bin/sh, with pipes. So a local install
// takes the same path as one over SSH.
class LocalConnector : public Connector {
 public:
  // `host` is only a name in messages.
  tl::expected<std::unique_ptr<RemoteHost>, ConnectError> connect(const Host& host,
                                                                  Deadline deadline,
                                                                  std::stop_token stop) override;
};

}  // namespace dsi

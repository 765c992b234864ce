#pragma once

#include "orchestrator/ports/remote_host.h"

namespace dsi {

// A node of Slurm, reached without SSH: one allocation a host for as long as the session lasts, and
// a step of it for each command. Inside an allocation (SLURM_JOB_ID) its steps are used and none is
// asked for. The allocation ends with this process, however that ends: a child of it holds it, and
// leaves when its standard input does.
class SrunConnector : public Connector {
 public:
  // A node that runs jobs is unreachable: the deadline is also how long an allocation may take.
  tl::expected<std::unique_ptr<RemoteHost>, ConnectError> connect(const Host& host,
                                                                  Deadline deadline,
                                                                  std::stop_token stop) override;
};

}  // namespace dsi

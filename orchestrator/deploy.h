#pragma once

// What is done on one host once it was looked at, up to the result.

#include "orchestrator/bundle.h"
#include "orchestrator/report.h"
#include "orchestrator/session.h"

namespace dsi {

// The five things that can be done. Each returns a whole row of the report, whatever happens; each
// reconnects once if the session was lost while it waited. A host that took part in a swarm keeps
// its session after deploy(): it serves others until the session is given up.
HostReport deploy(Session& session, const Payload& payload, const RunContext& run);
HostReport report_on(Session& session, const RunContext& run);
HostReport roll_back(Session& session, const RunContext& run);
HostReport uninstall(Session& session, const RunContext& run);
// Sets a hold with the options' reason, or ends it.
HostReport change_hold(Session& session, bool hold, const RunContext& run);

}  // namespace dsi

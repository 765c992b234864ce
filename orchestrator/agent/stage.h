#pragma once

// A release on its way into a prefix: everything before the switch, and the way back from there.
// What is inside the release, ops or a package, is the callers' business.

#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/agent/prefix.h"
#include "orchestrator/agent/release.h"
#include "orchestrator/agent/wire.h"

namespace dsi::agent {

// False once the head is gone.
bool send_stage(Wire& wire, std::string_view stage);
// What went wrong after the switch: the host has the new release, and the transcript the reason.
void send_note(Wire& wire, const Result<void>& outcome);

// The whole release in releases/<id>, verified; what is not here comes from the head and the other
// hosts. `built` says whether it is this run's to take away again.
Result<void> stage_release(const Prefix& prefix, const std::string& id, const std::string& text,
                           const Manifest& manifest, Wire& wire, bool& built);
Result<void> check_whole(const Prefix& prefix, const std::string& id, const std::string& text,
                         const Manifest& manifest);
// Puts back what is not as it was. Each file comes by a rename, so a program that runs keeps what
// it has loaded.
Result<void> repair(const Prefix& prefix, const std::string& id, const std::string& text,
                    const Manifest& manifest, const std::vector<Damage>& damage, Wire& wire);
Result<void> check_strict(const std::vector<protocol::OpRow>& rows);
// After a failure: the prefix is as it was. What came whole stays in the store if it was the head
// that left, so that the next run need not send it again.
void take_back(Prefix& prefix, const std::string& id, bool built, bool keep_store);

}  // namespace dsi::agent

#pragma once

// What a run intends with a package or a bundle, before the build and after it. Pure.

#include <filesystem>

#include "orchestrator/bundle.h"
#include "orchestrator/package/payload.h"
#include "orchestrator/plan.h"
#include "orchestrator/survey.h"

namespace dsi {

// Before its build: what the source and the build's Python say of it.
Intention intend_job(const PackageJob& job);
// Adds what is known once it is built. Nothing if the payload has no package.
void intend_package(Intention& intention, const Payload& payload);
// Of ops or of a package; the file's name is only told.
Intention intend_bundle(const std::filesystem::path& bundle, const Payload& payload);

// What the hosts on which it can be installed are, for the build. `plan` is of this survey.
PackageTargets targets_of(const Survey& survey, const Plan& plan);

}  // namespace dsi

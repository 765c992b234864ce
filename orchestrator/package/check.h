#pragma once

// Whether a package can work in a host's Python, decided before anything is changed there. Pure.

#include <cstdint>
#include <string>
#include <vector>

#include "orchestrator/agent/protocol.h"
#include "orchestrator/base/result.h"
#include "orchestrator/manifest.h"

namespace dsi {

struct PackageCheck {
  Error refusal;                      // Empty: nothing speaks against it.
  std::vector<std::string> warnings;  // It can work, and yet this should be known.
};

// `package` may be known in part only, as before its build: what is empty is not compared. `bytes`:
// the sizes of the release's wheels.
PackageCheck check_package(const ManifestPackage& package, std::uint64_t bytes,
                           const protocol::PythonFacts& python, const protocol::Facts& host);

// The requirements of `package` that this Python does not meet, as in METADATA without their
// markers: "hjson", "pydantic>=2.0.0". Those that come along in its dependencies do not count.
std::vector<std::string> missing_requirements(const ManifestPackage& package,
                                              const protocol::PythonFacts& python,
                                              const std::string& arch);

}  // namespace dsi

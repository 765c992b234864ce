#pragma once

// As much of PEP 508 and PEP 440 as is needed to tell what a package asks for on a host.

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace dsi {

// "numpy>=1.20; python_version < '3.9'" and the older "numpy (>=1.20)".
struct Requirement {
  std::string name;       // Normalised.
  std::string specifier;  // ">=1.20,<2"; empty: any version.
  std::string marker;     // Empty: always.
};
Requirement parse_requirement(std::string_view text);

// `variables` has python_version, sys_platform and so on; one that is not there, and anything that
// is no marker, gives nothing.
std::optional<bool> marker_holds(std::string_view marker,
                                 const std::map<std::string, std::string>& variables);

// True if `version` is one that `specifier` lets in. Local parts ("+cu130") do not count, and a
// specifier that cannot be read lets everything in.
bool version_satisfies(std::string_view version, std::string_view specifier);

}  // namespace dsi

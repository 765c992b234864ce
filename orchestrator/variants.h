#pragma once

// Which of several builds of the ops each host gets: hosts group by what a build depends on, and as
// few builds are made as serve them all. One build has code for all their devices and levels of
// instructions, so that another torch (its version, its C++ ABI, its CUDA) is the only reason for
// another. Pure.

#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "orchestrator/options.h"
#include "orchestrator/requirements.h"
#include "orchestrator/rules.h"

namespace dsi {

// The torches that the user names for so many hosts, each once.
struct WantedTorches {
  std::vector<std::filesystem::path> paths;  // Empty path: the one that is found without a name.
  std::vector<std::optional<std::size_t>> named;  // By host: which of them the configuration says.
  std::size_t fallback = 0;                       // Which of them the others get if it fits.
};
// That of --torch is wanted only if there is a host for which the configuration names none.
WantedTorches wanted_torches(const std::filesystem::path& option,
                             const std::map<std::string, HostOverrides>& per_host,
                             const std::vector<std::string>& hosts);

struct Variants {
  std::vector<std::size_t> builds;   // Numbers of the builds that are made, of those given.
  std::vector<std::size_t> of_host;  // By host: which of `builds`.
  std::vector<std::string> why;      // Of each of `builds`: "the configuration names it".
};

// Builds that are equal are one, under the number of the first. A host gets what the configuration
// names; else `wanted.fallback` if no rule refuses it there; else the first build that no rule
// refuses; else the one that fewest do, whose rules then say what is required and found. A host
// that did not answer asks for no build. At least one build is made.
Variants choose_variants(const std::vector<Requirements>& builds, const WantedTorches& wanted,
                         const std::vector<SurveyRow>& rows, const Rules& rules,
                         const std::set<std::string>& ignored);

}  // namespace dsi

#pragma once

// The two sides that are compared before anything is changed: what a look at a host gave, and what
// a release needs. Values; whoever does not know leaves a field empty.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "orchestrator/agent/protocol.h"
#include "orchestrator/base/result.h"
#include "orchestrator/manifest.h"
#include "orchestrator/node_facts.h"
#include "orchestrator/report.h"

namespace dsi {

// What the first look at a host gave.
struct SurveyRow {
  std::string host;
  HostStatus status = HostStatus::kNotTried;  // kNotTried here: it answered, nothing is done yet.
  Error error;                                // If it did not answer as it should.
  protocol::Facts facts;
  NodeFacts node;
  std::optional<protocol::PythonFacts> python;  // Of a run about a package, if it could be asked.
};

struct OpRequirements {
  std::string name;
  std::string glibc;  // Highest symbol versions that it needs.
  std::string glibcxx;
  std::string cxxabi;
  std::vector<std::string> libraries;  // That it is linked to.
  std::vector<std::string> devices;
  std::vector<std::string> compute_capabilities;  // That it has code for; empty: none, or unknown.
  int isa_level = 0;                              // Of x86-64 that it needs; 0: any, or unknown.
};

struct Requirements {
  std::string arch;  // "x86_64"
  std::string torch;
  std::string torch_abi;    // "cxx11", "old".
  std::string torch_cuda;   // That torch was compiled with; empty: without, or unknown.
  std::string cuda;         // Of the toolkit; empty: no code for devices.
  std::uint64_t bytes = 0;  // Of a first install.
  std::uint64_t files = 0;
  std::vector<OpRequirements> ops;  // Empty: it is not built yet.
};

// All that a manifest says about it.
Requirements requirements_of(const Manifest& manifest);

// What any of the ops has code for, each once.
std::vector<std::string> compute_capabilities_of(const Requirements& build);

}  // namespace dsi

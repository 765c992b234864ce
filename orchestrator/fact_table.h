#pragma once

// The one table of facts: the fields of rules, the groups of a survey and the documentation follow
// from it.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "orchestrator/requirements.h"

namespace dsi {

// What a field is read from.
struct FactContext {
  const SurveyRow& row;
  const Requirements& build;
  const OpRequirements* op = nullptr;  // For fields of an op.
  std::size_t shared_by = 1;           // Hosts of this run that see the same prefix.
};

// monostate: unknown.
using FactValue = std::variant<std::monostate, bool, double, std::string, std::vector<std::string>>;

enum class FactType { kText, kVersion, kNumber, kBytes, kSeconds, kFlag, kList };
const char* to_string(FactType type);

// How a survey shows it.
enum class FactUse {
  kGroup,  // A build or an install depends on it: hosts that differ in it are different groups.
  kRange,  // Reported as least and most.
  kOther,
};

struct FactSpec {
  std::string_view name;  // "node.libc.glibc"
  FactType type;
  FactUse use;
  std::string_view help;
  FactValue (*read)(const FactContext&);
};

std::span<const FactSpec> fact_table();
const FactSpec* find_fact(std::string_view name);

// For people: "2.36", "1.5 GiB", "yes", "8.0, 9.0", "unknown".
std::string fact_text(const FactSpec& fact, const FactValue& value);

}  // namespace dsi

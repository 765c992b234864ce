#pragma once

// The conditions of rules.

#include <optional>
#include <string>
#include <vector>

#include "orchestrator/fact_table.h"

namespace dsi {

enum class Operator {
  kIs,
  kIsNot,
  kOlderThan,
  kNewerThan,
  kOtherMajorThan,
  kOlderMajorThan,
  kOtherMinorThan,
  kBelow,
  kAbove,
  kHas,
  kLacks,
  kEmpty,
  kKnown,
};

struct OperatorSpec {
  Operator op;
  std::string_view name;
  std::string_view types;  // First letters of the types that it is for: t v n b s f l.
  std::string_view help;
};
const std::vector<OperatorSpec>& operator_table();

// What a field is compared with: another field, or one of some values.
struct Operand {
  const FactSpec* field = nullptr;
  std::vector<FactValue> values;
};

struct Condition {
  enum class Kind { kAll, kAny, kNot, kCompare };
  Kind kind = Kind::kAll;
  std::vector<Condition> parts;  // kNot has one.
  const FactSpec* field = nullptr;
  Operator op = Operator::kIs;
  Operand operand;
};

// Nothing: it depends on what is not known.
std::optional<bool> holds(const Condition& condition, const FactContext& context);

// The fields that are not known and that the answer depends on, each once; empty if holds() has
// one.
std::vector<const FactSpec*> unknown_in(const Condition& condition, const FactContext& context);

}  // namespace dsi

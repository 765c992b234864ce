#include "orchestrator/condition.h"

#include <algorithm>
#include <cmath>

#include "orchestrator/elf.h"

namespace dsi {

namespace {

using std::string_view;

// The first `parts` numbers of a version: of "2.11.0+cu130" two are "2.11".
std::string leading(string_view version, int parts) {
  std::size_t end = 0;
  while (end < version.size()) {
    char c = version[end];
    if (c == '.' && --parts == 0) break;
    if (c != '.' && (c < '0' || c > '9')) break;
    ++end;
  }
  return std::string(version.substr(0, end));
}

// Digits and dots in front; what a builder has added to a version does not order it.
std::string plain(string_view version) {
  return leading(version, 1000);
}

std::optional<bool> compare_versions(Operator op, const std::string& a, const std::string& b) {
  if (plain(a).empty() || plain(b).empty()) return std::nullopt;
  switch (op) {
    case Operator::kOlderThan:
      return version_less(plain(a), plain(b));
    case Operator::kNewerThan:
      return version_less(plain(b), plain(a));
    case Operator::kOtherMajorThan:
      return leading(a, 1) != leading(b, 1);
    case Operator::kOlderMajorThan:
      return version_less(leading(a, 1), leading(b, 1));
    case Operator::kOtherMinorThan:
      return leading(a, 2) != leading(b, 2);
    default:
      return std::nullopt;
  }
}

std::optional<bool> compare_one(Operator op, const FactValue& value, const FactValue& with) {
  if (const auto* all = std::get_if<std::vector<std::string>>(&value)) {
    const auto* one = std::get_if<std::string>(&with);
    if (one == nullptr) return std::nullopt;
    bool there = std::find(all->begin(), all->end(), *one) != all->end();
    return op == Operator::kHas ? there : !there;
  }
  if (const auto* number = std::get_if<double>(&value)) {
    const auto* other = std::get_if<double>(&with);
    if (other == nullptr) return std::nullopt;
    if (op == Operator::kBelow) return *number < *other;
    if (op == Operator::kAbove) return *number > *other;
  }
  const auto* words = std::get_if<std::string>(&value);
  const auto* other = std::get_if<std::string>(&with);
  if (words != nullptr && other != nullptr && op != Operator::kIs && op != Operator::kIsNot) {
    return compare_versions(op, *words, *other);
  }
  if (value.index() != with.index()) return std::nullopt;
  return op == Operator::kIs ? value == with : value != with;
}

bool is_known(const FactValue& value) {
  return !std::holds_alternative<std::monostate>(value);
}

std::optional<bool> compare(const Condition& condition, const FactContext& context) {
  FactValue value = condition.field->read(context);
  const Operand& operand = condition.operand;
  if (condition.op == Operator::kKnown) {
    return is_known(value) == std::get<bool>(operand.values[0]);
  }
  if (!is_known(value)) return std::nullopt;
  if (condition.op == Operator::kEmpty) {
    const auto* all = std::get_if<std::vector<std::string>>(&value);
    return (all == nullptr || all->empty()) == std::get<bool>(operand.values[0]);
  }
  if (operand.field != nullptr) {
    FactValue with = operand.field->read(context);
    if (!is_known(with)) return std::nullopt;
    return compare_one(condition.op, value, with);
  }
  // One of several: `is` and `has` want any of them, the negative ones none.
  bool all_of = condition.op == Operator::kIsNot || condition.op == Operator::kLacks;
  std::optional<bool> result = all_of;
  for (const FactValue& with : operand.values) {
    std::optional<bool> one = compare_one(condition.op, value, with);
    if (one == !all_of) return one;
    if (!one) result = std::nullopt;
  }
  return result;
}

}  // namespace

const std::vector<OperatorSpec>& operator_table() {
  static const std::vector<OperatorSpec> kTable = {
      {Operator::kIs, "is", "tvnbsf", "the same; of a list of values one of them"},
      {Operator::kIsNot, "is_not", "tvnbsf", "another one; of a list of values none of them"},
      {Operator::kOlderThan, "older_than", "v", "a lower version, part by part as numbers"},
      {Operator::kNewerThan, "newer_than", "v", "a higher version"},
      {Operator::kOtherMajorThan, "other_major_than", "v", "12.4 is to 11.8, and not to 12.1"},
      {Operator::kOlderMajorThan, "older_major_than", "v", "11.8 is to 12.4, and 12.1 is not"},
      {Operator::kOtherMinorThan, "other_minor_than", "v",
       "the first two parts differ: 2.4.0 and 2.3.1"},
      {Operator::kBelow, "below", "nbs", "a smaller number; 64MiB, 2GB, 5s, 1h are numbers too"},
      {Operator::kAbove, "above", "nbs", "a larger number"},
      {Operator::kHas, "has", "l", "it is in the list"},
      {Operator::kLacks, "lacks", "l", "it is not in the list"},
      {Operator::kEmpty, "empty", "l", "true or false: nothing is in the list"},
      {Operator::kKnown, "known", "tvnbsfl", "true or false: it could be found out"},
  };
  return kTable;
}

std::vector<const FactSpec*> unknown_in(const Condition& condition, const FactContext& context) {
  std::vector<const FactSpec*> fields;
  if (holds(condition, context)) return fields;
  auto add = [&](const FactSpec* field) {
    if (field != nullptr && std::find(fields.begin(), fields.end(), field) == fields.end()) {
      fields.push_back(field);
    }
  };
  if (condition.kind == Condition::Kind::kCompare) {
    for (const FactSpec* field : {condition.field, condition.operand.field}) {
      if (field != nullptr && !is_known(field->read(context))) add(field);
    }
    // Known, and of no shape that can be compared: a version without a number.
    if (fields.empty()) add(condition.field);
  }
  for (const Condition& part : condition.parts) {
    for (const FactSpec* field : unknown_in(part, context)) add(field);
  }
  return fields;
}

std::optional<bool> holds(const Condition& condition, const FactContext& context) {
  switch (condition.kind) {
    case Condition::Kind::kCompare:
      return compare(condition, context);
    case Condition::Kind::kNot: {
      std::optional<bool> part = holds(condition.parts[0], context);
      return part ? std::optional<bool>(!*part) : std::nullopt;
    }
    case Condition::Kind::kAll:
    case Condition::Kind::kAny: {
      bool decides = condition.kind == Condition::Kind::kAny;
      std::optional<bool> result = !decides;
      for (const Condition& part : condition.parts) {
        std::optional<bool> one = holds(part, context);
        if (one == decides) return decides;
        if (!one) result = std::nullopt;
      }
      return result;
    }
  }
  return std::nullopt;
}

}  // namespace dsi

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "orchestrator/condition.h"
#include "orchestrator/rules.h"
#include "orchestrator/text.h"
#include "orchestrator/yaml_mistakes.h"

namespace dsi {
namespace {

using std::string_view;

constexpr const char* kKeys[] = {"id",       "each",   "when",    "severity", "found",
                                 "required", "remedy", "message", "about"};

char letter_of(FactType type) {
  switch (type) {
    case FactType::kText:
      return 't';
    case FactType::kVersion:
      return 'v';
    case FactType::kNumber:
      return 'n';
    case FactType::kBytes:
      return 'b';
    case FactType::kSeconds:
      return 's';
    case FactType::kFlag:
      return 'f';
    case FactType::kList:
      return 'l';
  }
  return 0;
}

struct Unit {
  string_view name;
  double factor;
};
constexpr double kKi = 1024;
constexpr Unit kByteUnits[] = {{"B", 1},    {"KiB", kKi}, {"MiB", kKi* kKi}, {"GiB", kKi* kKi* kKi},
                               {"kB", 1e3}, {"KB", 1e3},  {"MB", 1e6},       {"GB", 1e9},
                               {"TB", 1e12}};
constexpr Unit kSecondUnits[] = {{"s", 1}, {"min", 60}, {"h", 3600}, {"days", 86'400}};

std::optional<double> number_of(FactType type, string_view text) {
  double value = 0;
  auto [end, bad] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (bad != std::errc()) return std::nullopt;
  string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  if (unit.empty()) return value;
  auto find = [&](const auto& units) -> std::optional<double> {
    for (const Unit& one : units) {
      if (one.name == unit) return value * one.factor;
    }
    return std::nullopt;
  };
  if (type == FactType::kBytes) return find(kByteUnits);
  if (type == FactType::kSeconds) return find(kSecondUnits);
  return std::nullopt;
}

class Reader {
 public:
  explicit Reader(const std::filesystem::path& file) : file_(file), mistakes_(file) {}

  Result<Rules> read(string_view text) {
    mistakes_.read_document(text, [this](const YAML::Node& document) { read_list(document); });
    if (mistakes_.count() == 0) return std::move(rules_);
    return tl::unexpected(
        mistakes_.error(fmt::format("the rules in {} have", printable(file_.string()))));
  }

 private:
  void note(const YAML::Mark& mark, string_view what, string_view help) {
    mistakes_.note(mark, what, help);
  }

  static std::string meant(string_view word, const std::vector<std::string>& known,
                           std::string otherwise) {
    std::string near = closest(word, known);
    return near.empty() ? std::move(otherwise) : fmt::format("did you mean {}?", near);
  }

  void read_list(const YAML::Node& list) {
    if (list.IsNull()) return;
    if (!list.IsSequence()) {
      note(list.Mark(), "expected a list of rules, each with `- id: name`",
           "docs/rules.md has examples");
      return;
    }
    for (const YAML::Node& node : list) read_rule(node);
  }

  void read_rule(const YAML::Node& node) {
    if (!node.IsMap()) {
      note(node.Mark(), "a rule needs `id: name` and more", "docs/rules.md has examples");
      return;
    }
    Rule rule;
    std::vector<std::string> known(std::begin(kKeys), std::end(kKeys));
    std::set<std::string> seen;
    std::string severity;
    YAML::Node when;
    for (const auto& entry : node) {
      std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "";
      if (std::find(known.begin(), known.end(), key) == known.end()) {
        note(entry.first.Mark(), fmt::format("a rule has no {}", printable(key)),
             meant(key, known, "a rule has id, when, severity, message, required, found, remedy"));
        continue;
      }
      if (!seen.insert(key).second) {
        note(entry.first.Mark(), fmt::format("{} is given twice", key), "give it once");
        continue;
      }
      if (key == "when") {
        when = entry.second;
        continue;
      }
      if (!entry.second.IsScalar() || entry.second.Scalar().empty()) {
        note(entry.second.Mark(), fmt::format("{} needs one text", key), "");
        continue;
      }
      const std::string& value = entry.second.Scalar();
      if (key == "id") read_id(entry.second, rule);
      if (key == "each") {
        rule.each_op = value == "op";
        if (!rule.each_op) note(entry.second.Mark(), "each knows only op", "write each: op");
      }
      if (key == "severity") severity = value;
      if (key == "message") rule.message = value;
      if (key == "required") rule.required = value;
      if (key == "found") rule.found = value;
      if (key == "remedy") rule.remedy = value;
      if (key == "about") rule.about = value;
      if (key == "severity") read_severity(entry.second, rule);
    }
    // Only a rule that is to be silent needs no more than its name.
    bool off = severity == "off";
    for (const char* key : {"id", "severity", "when", "message"}) {
      bool needed = !off || std::string_view(key) == "id";
      if (needed && seen.count(key) == 0) {
        note(node.Mark(), fmt::format("a rule needs {}", key), "docs/rules.md has examples");
      }
    }
    each_op_ = rule.each_op;
    if (when.IsDefined() && !when.IsNull()) {
      auto condition = std::make_shared<Condition>();
      read_condition(when, *condition);
      rule.when = std::move(condition);
    } else {
      rule.when = std::make_shared<Condition>();
    }
    for (const char* key : {"message", "required", "found", "remedy"}) {
      if (YAML::Node text = node[key]; text && text.IsScalar()) check_template(text);
    }
    rules_.push_back(std::move(rule));
  }

  void read_id(const YAML::Node& node, Rule& rule) {
    rule.id = node.Scalar();
    bool good = std::all_of(rule.id.begin(), rule.id.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
    });
    if (!good) {
      note(node.Mark(), fmt::format("the name {} cannot be used", printable(rule.id)),
           "use small letters, digits and -");
    }
    for (const Rule& other : rules_) {
      if (other.id == rule.id) {
        note(node.Mark(), fmt::format("there are two rules {}", printable(rule.id)),
             "give one of them another id");
      }
    }
  }

  void read_severity(const YAML::Node& node, Rule& rule) {
    const std::string& value = node.Scalar();
    if (value == "refuse") {
      rule.severity = Severity::kRefuse;
    } else if (value == "warn") {
      rule.severity = Severity::kWarn;
    } else if (value == "off") {
      rule.severity = Severity::kOff;
    } else {
      note(node.Mark(), fmt::format("there is no severity {}", printable(value)),
           meant(value, {"refuse", "warn", "off"}, "write refuse, warn or off"));
    }
  }

  // The field of this name, or nullptr and a complaint.
  const FactSpec* field_named(const YAML::Mark& mark, const std::string& name) {
    const FactSpec* fact = find_fact(name);
    if (fact == nullptr) {
      std::vector<std::string> known;
      for (const FactSpec& one : fact_table()) known.emplace_back(one.name);
      note(mark, fmt::format("there is no field {}", printable(name)),
           meant(name, known, "docs/rules.md lists the fields"));
    } else if (fact->name.starts_with("op.") && !each_op_) {
      note(mark, fmt::format("{} is of an op, and this rule is not about one", name),
           "add each: op to the rule");
      return nullptr;
    }
    return fact;
  }

  void check_template(const YAML::Node& node) {
    string_view text = node.Scalar();
    for (std::size_t open = 0; (open = text.find('{', open)) != text.npos;) {
      std::size_t close = text.find('}', open);
      if (close == text.npos) {
        note(node.Mark(), "a { has no }", "a field is written {node.arch}");
        return;
      }
      field_named(node.Mark(), std::string(text.substr(open + 1, close - open - 1)));
      open = close;
    }
  }

  void read_condition(const YAML::Node& node, Condition& condition) {
    if (!node.IsMap() || node.size() == 0) {
      note(node.Mark(), "a condition is `field: {operator: value}`, or all, any or not",
           "docs/rules.md has examples");
      return;
    }
    condition.kind = Condition::Kind::kAll;
    for (const auto& entry : node) {
      std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "";
      Condition part;
      if (key == "all" || key == "any") {
        part.kind = key == "all" ? Condition::Kind::kAll : Condition::Kind::kAny;
        if (!entry.second.IsSequence() || entry.second.size() == 0) {
          note(entry.second.Mark(), fmt::format("{} needs a list of conditions", key), "");
          continue;
        }
        for (const YAML::Node& one : entry.second) read_condition(one, part.parts.emplace_back());
      } else if (key == "not") {
        part.kind = Condition::Kind::kNot;
        read_condition(entry.second, part.parts.emplace_back());
      } else if (const FactSpec* field = field_named(entry.first.Mark(), key)) {
        read_comparisons(entry.second, *field, condition);
        continue;
      } else {
        continue;
      }
      condition.parts.push_back(std::move(part));
    }
  }

  void read_comparisons(const YAML::Node& node, const FactSpec& field, Condition& condition) {
    if (!node.IsMap() || node.size() == 0) {
      note(node.Mark(), fmt::format("{} needs an operator and a value", field.name),
           "write it as {is: value}");
      return;
    }
    std::vector<std::string> known;
    for (const OperatorSpec& op : operator_table()) known.emplace_back(op.name);
    for (const auto& entry : node) {
      std::string name = entry.first.IsScalar() ? entry.first.Scalar() : "";
      auto at = std::find(known.begin(), known.end(), name);
      if (at == known.end()) {
        note(entry.first.Mark(), fmt::format("there is no operator {}", printable(name)),
             meant(name, known, "docs/rules.md lists the operators"));
        continue;
      }
      const OperatorSpec& op = operator_table()[static_cast<std::size_t>(at - known.begin())];
      if (op.types.find(letter_of(field.type)) == op.types.npos) {
        std::string usable;
        for (const OperatorSpec& other : operator_table()) {
          if (other.types.find(letter_of(field.type)) == other.types.npos) continue;
          usable += (usable.empty() ? "" : ", ") + std::string(other.name);
        }
        note(entry.first.Mark(),
             fmt::format("{} is {}, and {} is not for that", field.name, to_string(field.type),
                         op.name),
             fmt::format("for it there are: {}", usable));
        continue;
      }
      Condition part;
      part.kind = Condition::Kind::kCompare;
      part.field = &field;
      part.op = op.op;
      if (read_operand(entry.second, part)) condition.parts.push_back(std::move(part));
    }
  }

  bool read_operand(const YAML::Node& node, Condition& part) {
    if (part.op == Operator::kKnown || part.op == Operator::kEmpty) {
      bool value = false;
      if (!node.IsScalar() || !YAML::convert<bool>::decode(node, value)) {
        note(node.Mark(), "needs true or false", "");
        return false;
      }
      part.operand.values = {FactValue(value)};
      return true;
    }
    if (node.IsScalar()) {
      const std::string& text = node.Scalar();
      if (text.starts_with("node.") || text.starts_with("build.") || text.starts_with("op.")) {
        part.operand.field = field_named(node.Mark(), text);
        if (part.operand.field == nullptr) return false;
        return check_comparable(node, part);
      }
      return add_value(node, part);
    }
    bool several = part.op == Operator::kIs || part.op == Operator::kIsNot ||
                   part.op == Operator::kHas || part.op == Operator::kLacks;
    if (!node.IsSequence() || node.size() == 0 || !several) {
      note(node.Mark(), several ? "needs a value or a list of values" : "needs one value", "");
      return false;
    }
    bool good = true;
    for (const YAML::Node& one : node) good = add_value(one, part) && good;
    return good;
  }

  bool check_comparable(const YAML::Node& node, const Condition& part) {
    auto kind = [](FactType type) {
      bool words = type == FactType::kText || type == FactType::kVersion;
      return words ? FactType::kText : type;
    };
    FactType wanted = kind(part.field->type);
    if (part.op == Operator::kHas || part.op == Operator::kLacks) wanted = FactType::kText;
    if (kind(part.operand.field->type) == wanted) return true;
    note(node.Mark(),
         fmt::format("{} is {} and cannot be compared with {}, which is {}", part.field->name,
                     to_string(part.field->type), part.operand.field->name,
                     to_string(part.operand.field->type)),
         "");
    return false;
  }

  bool add_value(const YAML::Node& node, Condition& part) {
    const FactType type = part.field->type;
    if (!node.IsScalar() || node.Scalar().empty()) {
      note(node.Mark(), "needs a value", "");
      return false;
    }
    const std::string& text = node.Scalar();
    switch (type) {
      case FactType::kFlag: {
        bool value = false;
        if (!YAML::convert<bool>::decode(node, value)) {
          note(node.Mark(), fmt::format("{} is true or false", part.field->name), "");
          return false;
        }
        part.operand.values.emplace_back(value);
        return true;
      }
      case FactType::kNumber:
      case FactType::kBytes:
      case FactType::kSeconds: {
        std::optional<double> value = number_of(type, text);
        if (!value) {
          note(node.Mark(),
               fmt::format("\"{}\" is no number of {}", printable(text), to_string(type)),
               type == FactType::kBytes     ? "write 64MiB, 2GB or a number"
               : type == FactType::kSeconds ? "write 5s, 10min, 1h or a number"
                                            : "");
          return false;
        }
        part.operand.values.emplace_back(*value);
        return true;
      }
      case FactType::kVersion:
        if (part.op != Operator::kIs && part.op != Operator::kIsNot &&
            (text[0] < '0' || text[0] > '9')) {
          note(node.Mark(), fmt::format("\"{}\" is no version", printable(text)),
               "write numbers with dots between");
          return false;
        }
        [[fallthrough]];
      case FactType::kText:
      case FactType::kList:
        part.operand.values.emplace_back(text);
        return true;
    }
    return false;
  }

  std::filesystem::path file_;
  Rules rules_;
  bool each_op_ = false;
  YamlMistakes mistakes_;
};

}  // namespace

Result<Rules> read_rules(string_view text, const std::filesystem::path& file) {
  return Reader(file).read(text);
}

}  // namespace dsi

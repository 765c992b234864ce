#include "orchestrator/package/marker.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "orchestrator/manifest.h"

namespace dsi {

namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// ---- versions

// Enough of PEP 440 to order what is released: "1!2.3rc1.post2.dev4+local".
struct Version {
  int epoch = 0;
  std::vector<int> release;
  int phase = 0;  // -2 dev, -1 pre-release, 0 release, 1 post.
  std::string pre;
  int number = 0;
};

int take_number(std::string_view& text) {
  int number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

bool starts_with_digit(std::string_view text) {
  return !text.empty() && text[0] >= '0' && text[0] <= '9';
}

Version version_of(std::string_view text) {
  text = trimmed(text);
  text = text.substr(0, text.find('+'));
  if (text.starts_with('v')) text.remove_prefix(1);
  Version version;
  if (std::size_t bang = text.find('!'); bang != text.npos) {
    version.epoch = take_number(text);
    text.remove_prefix(text.starts_with('!') ? 1 : 0);
  }
  while (starts_with_digit(text)) {
    version.release.push_back(take_number(text));
    if (text.size() < 2 || text[0] != '.' || !starts_with_digit(text.substr(1))) break;
    text.remove_prefix(1);
  }
  while (!version.release.empty() && version.release.back() == 0) version.release.pop_back();
  while (!text.empty() && (text[0] == '.' || text[0] == '-' || text[0] == '_')) {
    text.remove_prefix(1);
  }
  std::size_t letters = 0;
  while (letters < text.size() && text[letters] >= 'a' && text[letters] <= 'z') ++letters;
  const std::string_view word = text.substr(0, letters);
  if (word == "dev") {
    version.phase = -2;
  } else if (word == "post" || word == "rev" || word == "r") {
    version.phase = 1;
  } else if (!word.empty()) {
    version.phase = -1;
    version.pre = word.substr(0, 1);  // a, b, rc or c, alpha, beta: their first letters sort.
    if (version.pre == "c") version.pre = "r";
  }
  text.remove_prefix(letters);
  if (!word.empty()) version.number = take_number(text);
  return version;
}

int compare(const Version& a, const Version& b) {
  auto key = [](const Version& v) {
    return std::tie(v.epoch, v.release, v.phase, v.pre, v.number);
  };
  return key(a) < key(b) ? -1 : key(b) < key(a) ? 1 : 0;
}

bool has_prefix(std::string_view version, std::string_view prefix) {
  Version whole = version_of(version);
  Version part = version_of(prefix);
  // The zeros that do not count for an order do count here.
  std::size_t parts = 1 + static_cast<std::size_t>(std::count(prefix.begin(), prefix.end(), '.'));
  whole.release.resize(std::max(parts, whole.release.size()));
  part.release.resize(parts);
  return whole.epoch == part.epoch &&
         std::equal(part.release.begin(), part.release.end(), whole.release.begin());
}

// Nothing: the comparison is none that is known.
std::optional<bool> compare_versions(std::string_view left, std::string_view op,
                                     std::string_view right) {
  if (op == "==" || op == "!=") {
    const bool same = right.ends_with(".*") ? has_prefix(left, right.substr(0, right.size() - 2))
                                            : compare(version_of(left), version_of(right)) == 0;
    return (op == "==") == same;
  }
  const int order = compare(version_of(left), version_of(right));
  if (op == ">=") return order >= 0;
  if (op == "<=") return order <= 0;
  if (op == ">") return order > 0;
  if (op == "<") return order < 0;
  if (op == "===") return left == right;
  if (op == "~=") {
    const std::size_t dot = right.rfind('.');
    return order >= 0 && dot != right.npos && has_prefix(left, right.substr(0, dot));
  }
  return {};
}

std::string_view take_operator(std::string_view& text) {
  for (std::string_view op : {"===", "==", "!=", "~=", ">=", "<=", ">", "<"}) {
    if (!text.starts_with(op)) continue;
    text.remove_prefix(op.size());
    return op;
  }
  return {};
}

// ---- markers

class MarkerReader {
 public:
  MarkerReader(std::string_view text, const std::map<std::string, std::string>& variables)
      : rest_(text), variables_(variables) {}

  std::optional<bool> read() {
    std::optional<bool> value = read_or(0);
    return trimmed(rest_).empty() && good_ ? value : std::nullopt;
  }

 private:
  // A variable that nobody knows makes a value unknown, unless the other side decides alone.
  std::optional<bool> read_or(int depth) {
    std::optional<bool> value = read_and(depth);
    while (good_ && take_word("or")) {
      std::optional<bool> other = read_and(depth);
      value = value == true || other == true ? std::optional(true)
              : value && other               ? std::optional(false)
                                             : std::nullopt;
    }
    return value;
  }
  std::optional<bool> read_and(int depth) {
    std::optional<bool> value = read_one(depth);
    while (good_ && take_word("and")) {
      std::optional<bool> other = read_one(depth);
      value = value == false || other == false ? std::optional(false)
              : value && other                 ? std::optional(true)
                                               : std::nullopt;
    }
    return value;
  }
  std::optional<bool> read_one(int depth) {
    rest_ = trimmed(rest_);
    if (depth > 50) return give_up();
    if (rest_.starts_with('(')) {
      rest_.remove_prefix(1);
      std::optional<bool> value = read_or(depth + 1);
      rest_ = trimmed(rest_);
      if (!rest_.starts_with(')')) return give_up();
      rest_.remove_prefix(1);
      return value;
    }
    Side left = read_side();
    rest_ = trimmed(rest_);
    std::string op(take_operator(rest_));
    if (op.empty() && take_word("in")) op = "in";
    if (op.empty() && take_word("not") && take_word("in")) op = "not in";
    Side right = read_side();
    if (!good_ || op.empty()) return give_up();
    if (!left.value || !right.value) return {};
    if (op == "in") return right.value->find(*left.value) != std::string::npos;
    if (op == "not in") return right.value->find(*left.value) == std::string::npos;
    if (left.is_version || right.is_version) return compare_versions(*left.value, op, *right.value);
    if (op == "==" || op == "===") return *left.value == *right.value;
    if (op == "!=") return *left.value != *right.value;
    return {};
  }

  struct Side {
    std::optional<std::string> value;
    bool is_version = false;
  };
  Side read_side() {
    rest_ = trimmed(rest_);
    if (rest_.starts_with('"') || rest_.starts_with('\'')) {
      const std::size_t end = rest_.find(rest_[0], 1);
      if (end == rest_.npos) {
        give_up();
        return {};
      }
      Side side{std::string(rest_.substr(1, end - 1))};
      rest_.remove_prefix(end + 1);
      return side;
    }
    std::size_t length = 0;
    while (length < rest_.size() && ((rest_[length] >= 'a' && rest_[length] <= 'z') ||
                                     rest_[length] == '_' || rest_[length] == '.')) {
      ++length;
    }
    const std::string name(rest_.substr(0, length));
    if (name.empty()) {
      give_up();
      return {};
    }
    rest_.remove_prefix(length);
    auto at = variables_.find(name);
    Side side;
    if (at != variables_.end()) side.value = at->second;
    side.is_version = name == "python_version" || name == "python_full_version" ||
                      name == "implementation_version";
    return side;
  }
  bool take_word(std::string_view word) {
    rest_ = trimmed(rest_);
    if (!rest_.starts_with(word)) return false;
    std::string_view after = rest_.substr(word.size());
    const bool ends = after.empty() || after[0] == ' ' || after[0] == '\t' || after[0] == '(' ||
                      after[0] == '"' || after[0] == '\'';
    if (ends) rest_ = after;
    return ends;
  }
  std::optional<bool> give_up() {
    good_ = false;
    return {};
  }

  std::string_view rest_;
  const std::map<std::string, std::string>& variables_;
  bool good_ = true;
};

}  // namespace

Requirement parse_requirement(std::string_view text) {
  Requirement requirement;
  if (std::size_t semicolon = text.find(';'); semicolon != text.npos) {
    requirement.marker = trimmed(text.substr(semicolon + 1));
    text = text.substr(0, semicolon);
  }
  text = trimmed(text);
  const std::size_t end = std::min(text.find_first_of(" \t[(<>=!~@"), text.size());
  requirement.name = normalised_package_name(text.substr(0, end));
  text = trimmed(text.substr(end));
  if (text.starts_with('[')) {
    text.remove_prefix(std::min(text.size(), text.find(']') + 1));
    text = trimmed(text);
  }
  // "name @ URL" says where from, not which version.
  if (text.starts_with('@')) return requirement;
  if (text.starts_with('(')) {
    text.remove_prefix(1);
    text = text.substr(0, text.find(')'));
  }
  requirement.specifier = text;
  // ">=1.0, <2" is one word to those who take it apart at spaces.
  std::erase_if(requirement.specifier, [](char c) { return c == ' ' || c == '\t'; });
  return requirement;
}

std::optional<bool> marker_holds(std::string_view marker,
                                 const std::map<std::string, std::string>& variables) {
  if (trimmed(marker).empty()) return true;
  return MarkerReader(marker, variables).read();
}

bool version_satisfies(std::string_view version, std::string_view specifier) {
  for (;;) {
    const std::size_t comma = specifier.find(',');
    std::string_view one = trimmed(specifier.substr(0, comma));
    const std::string_view op = take_operator(one);
    if (!op.empty() && compare_versions(version, op, trimmed(one)) == false) return false;
    if (comma == specifier.npos) return true;
    specifier.remove_prefix(comma + 1);
  }
}

}  // namespace dsi

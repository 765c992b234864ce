#include "orchestrator/base/nodeset.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>

namespace dsi {
namespace {

// 18 digits always fit into 64 bits, so nothing below can overflow.
constexpr std::size_t kMaxDigits = 18;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

std::uint64_t to_number(std::string_view digits) {
  std::uint64_t value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return value;
}

bool is_padded(std::string_view digits) {
  return digits.size() > 1 && digits[0] == '0';
}

struct Range {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  std::size_t width = 0;  // Digits to pad to; 0: as many as the number has.
};

// A name pattern is literals with brackets between them.
struct Piece {
  std::string_view literal;    // What stands before the bracket.
  std::vector<Range> choices;  // Empty only in the last piece, which has no bracket.
};

void append_padded(std::string& text, std::uint64_t value, std::size_t width) {
  char digits[24];
  auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  auto length = static_cast<std::size_t>(end - digits);
  if (length < width) text.append(width - length, '0');
  text.append(digits, end);
}

std::size_t digits_of(std::uint64_t value) {
  std::size_t count = 1;
  while (value >= 10) value /= 10, ++count;
  return count;
}

class Expander {
 public:
  Expander(std::string_view text, std::size_t limit) : text_(text), limit_(limit) {}

  bool run() {
    if (text_.empty()) return true;
    for (;;) {
      if (!name()) return false;
      if (at_ == text_.size()) return true;
      ++at_;  // The comma.
    }
  }

  std::vector<std::string> names;
  NodesetError error;

 private:
  bool refuse(std::size_t offset, std::string what, std::string help = {}) {
    error = {offset, {std::move(what), std::move(help)}};
    return false;
  }

  bool name() {
    std::size_t start = at_;
    std::vector<Piece> pieces;
    std::size_t count = 1;   // Names that this pattern makes.
    std::size_t length = 0;  // Of the longest of them.
    for (;;) {
      std::size_t stop = std::min(text_.find_first_of("[],", at_), text_.size());
      Piece piece{text_.substr(at_, stop - at_), {}};
      length += piece.literal.size();
      at_ = stop;
      if (stop < text_.size() && text_[stop] == ']') {
        return refuse(stop, "`]` without a `[` before it");
      }
      bool ends = stop == text_.size() || text_[stop] == ',';
      if (!ends && !bracket(piece.choices, count, length)) return false;
      if (length > kMaxNameLength) {
        return refuse(start, fmt::format("names longer than {} characters", kMaxNameLength));
      }
      pieces.push_back(std::move(piece));
      if (ends) break;
    }
    if (at_ == start) {
      return refuse(start, "a name is missing", "remove the comma that is too many");
    }
    if (count > limit_ - names.size()) return too_many(start);
    multiply(pieces);
    return true;
  }

  // Reads `[01-03,07]`, at_ on the bracket; leaves at_ behind it.
  bool bracket(std::vector<Range>& choices, std::size_t& count, std::size_t& length) {
    const std::size_t open = at_++;
    std::uint64_t size = 0;
    std::size_t widest = 0;
    for (;;) {
      Range range;
      if (!read_range(open, range)) return false;
      choices.push_back(range);
      widest = std::max({widest, range.width, digits_of(range.last)});
      size += range.last - range.first + 1;
      // Refused before it can cost anything: [1-999999999] is a typing error, not a cluster.
      if (size > limit_ || count > limit_ / size) return too_many(open);
      if (text_[at_++] == ']') break;
    }
    count *= static_cast<std::size_t>(size);
    length += widest;
    return true;
  }

  bool read_range(std::size_t open, Range& range) {
    const std::size_t start = at_;
    std::string_view first, last;
    if (!digits(open, first)) return false;
    last = first;
    if (at_ < text_.size() && text_[at_] == '-') {
      ++at_;
      if (!digits(open, last)) return false;
    }
    if (at_ == text_.size()) return unclosed(open);
    if (text_[at_] != ',' && text_[at_] != ']') {
      return refuse(at_, "expected `,`, `-` or `]` in a bracket",
                    "write ranges as [01-08,12]: only numbers, no blanks, no steps");
    }
    range.first = to_number(first);
    range.last = to_number(last);
    if (range.last < range.first) {
      return refuse(start, fmt::format("the range {}-{} runs backwards", first, last),
                    fmt::format("write {}-{}", last, first));
    }
    if (first.size() != last.size() && (is_padded(first) || is_padded(last))) {
      return refuse(start,
                    fmt::format("the range {}-{} mixes two widths of zero padding", first, last),
                    "write both ends with the same number of digits, or make two ranges of it");
    }
    range.width = is_padded(first) ? first.size() : 0;
    return true;
  }

  bool digits(std::size_t open, std::string_view& out) {
    std::size_t end = at_;
    while (end < text_.size() && is_digit(text_[end])) ++end;
    out = text_.substr(at_, end - at_);
    if (out.empty()) {
      if (at_ == text_.size()) return unclosed(open);
      return refuse(at_, "expected a number in a bracket", "write ranges as [01-08,12]");
    }
    if (out.size() > kMaxDigits) {
      return refuse(at_, fmt::format("a number of more than {} digits", kMaxDigits));
    }
    at_ = end;
    return true;
  }

  bool unclosed(std::size_t open) {
    return refuse(open, "`[` is never closed", "add the `]` that is missing");
  }

  bool too_many(std::size_t offset) {
    return refuse(offset, fmt::format("more than {} names", limit_),
                  "check the ends of the range: is there a digit too many?");
  }

  void multiply(const std::vector<Piece>& pieces) {
    std::vector<std::string> made{std::string()};
    for (const Piece& piece : pieces) {
      for (std::string& prefix : made) prefix += piece.literal;
      if (piece.choices.empty()) continue;
      std::vector<std::string> next;
      for (const std::string& prefix : made) {
        for (const Range& range : piece.choices) {
          for (std::uint64_t value = range.first; value <= range.last; ++value) {
            append_padded(next.emplace_back(prefix), value, range.width);
          }
        }
      }
      made = std::move(next);
    }
    std::move(made.begin(), made.end(), std::back_inserter(names));
  }

  std::string_view text_;
  std::size_t limit_;
  std::size_t at_ = 0;
};

// Folding: a name is cut into literals and numbers, literal first: "rack1n02" is
// {"rack", "1", "n", "02", ""}. From the last number to the first, names that differ in that number
// alone become one pattern whose number is a bracket. A pattern that came out of the last number
// folds again as a whole in the next, which gives rack[1-2]n[1-4] only where all eight exist.
struct Pattern {
  std::vector<std::string> parts;  // Odd places are numbers or, once folded, brackets.
  std::vector<std::string> first;  // The parts of its first name, to sort by.
};

std::vector<std::string> cut(std::string_view name) {
  std::vector<std::string> parts(1);
  if (name.find_first_of(":[],") != name.npos) {
    parts.back() = name;
    return parts;
  }
  for (std::size_t at = 0; at < name.size();) {
    std::size_t end = at;
    while (end < name.size() && is_digit(name[end]) == is_digit(name[at])) ++end;
    std::string_view run = name.substr(at, end - at);
    if (is_digit(name[at]) && run.size() <= kMaxDigits) {
      parts.emplace_back(run);
      parts.emplace_back();
    } else {
      parts.back() += run;
    }
    at = end;
  }
  return parts;
}

bool number_less(std::string_view a, std::string_view b) {
  std::uint64_t x = to_number(a), y = to_number(b);
  return x != y ? x < y : a.size() < b.size();
}

// As people count: node9 before node10.
bool parts_less(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    if (a[i] == b[i]) continue;
    return i % 2 == 1 ? number_less(a[i], b[i]) : a[i] < b[i];
  }
  return a.size() < b.size();
}

// "[01-03,07]" from sorted numbers; a run only where expanding it gives these very digits.
std::string make_bracket(const std::vector<std::string_view>& numbers) {
  std::string text = "[";
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t end = i + 1;
    while (end < numbers.size() && to_number(numbers[end]) == to_number(numbers[end - 1]) + 1 &&
           (numbers[end].size() == numbers[i].size() ||
            (!is_padded(numbers[i]) && !is_padded(numbers[end])))) {
      ++end;
    }
    if (i > 0) text += ',';
    text += numbers[i];
    if (end - i > 1) text.append("-").append(numbers[end - 1]);
    i = end;
  }
  return text + "]";
}

void fold_place(std::vector<Pattern>& patterns, std::size_t place) {
  std::unordered_map<std::string, std::vector<std::size_t>> groups;
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    const auto& parts = patterns[i].parts;
    if (place >= parts.size()) continue;
    std::string key;
    for (std::size_t p = 0; p < parts.size(); ++p) {
      // The separator cannot be part of a name with several parts.
      key.append(p == place ? std::string_view() : std::string_view(parts[p])).append(",");
    }
    groups[key].push_back(i);
  }
  std::vector<bool> gone(patterns.size(), false);
  for (auto& [key, members] : groups) {
    if (members.size() < 2) continue;
    std::sort(members.begin(), members.end(), [&](std::size_t a, std::size_t b) {
      return number_less(patterns[a].parts[place], patterns[b].parts[place]);
    });
    std::vector<std::string_view> numbers;
    for (std::size_t member : members) numbers.push_back(patterns[member].parts[place]);
    std::string bracket = make_bracket(numbers);
    for (std::size_t member : members) gone[member] = member != members.front();
    patterns[members.front()].parts[place] = std::move(bracket);
  }
  std::vector<Pattern> rest;
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    if (!gone[i]) rest.push_back(std::move(patterns[i]));
  }
  patterns = std::move(rest);
}

}  // namespace

tl::expected<std::vector<std::string>, NodesetError> expand_nodeset_at(std::string_view text,
                                                                       std::size_t limit) {
  Expander expander(text, limit);
  if (!expander.run()) return tl::unexpected<NodesetError>(std::move(expander.error));
  return std::move(expander.names);
}

Result<std::vector<std::string>> expand_nodeset(std::string_view text, std::size_t limit) {
  return expand_nodeset_at(text, limit).map_error([](NodesetError error) {
    error.error.what += fmt::format(" (column {})", error.offset + 1);
    return std::move(error.error);
  });
}

std::string fold_nodeset(const std::vector<std::string>& names) {
  std::vector<std::string_view> unique(names.begin(), names.end());
  std::sort(unique.begin(), unique.end());
  unique.erase(std::unique(unique.begin(), unique.end()), unique.end());

  std::vector<Pattern> patterns;
  std::size_t most_parts = 1;
  for (std::string_view name : unique) {
    auto parts = cut(name);
    most_parts = std::max(most_parts, parts.size());
    patterns.push_back({parts, parts});
  }
  for (std::size_t place = most_parts; place-- > 0;) {
    if (place % 2 == 1) fold_place(patterns, place);
  }
  std::sort(patterns.begin(), patterns.end(),
            [](const Pattern& a, const Pattern& b) { return parts_less(a.first, b.first); });

  std::string text;
  for (const Pattern& pattern : patterns) {
    if (&pattern != &patterns.front()) text += ',';
    for (const std::string& part : pattern.parts) text += part;
  }
  return text;
}

}  // namespace dsi

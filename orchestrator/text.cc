#include "orchestrator/text.h"

#include <algorithm>
#include <cstdint>
#include <regex>

namespace dsi {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

struct Character {
  char32_t code = 0;
  std::size_t bytes = 1;
  bool valid = false;
};

// The first character of a text that is not empty; one byte if it is no UTF-8.
Character first_character(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return {lead, 1, true};
  std::size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < bytes) return {};
  char32_t code = lead & (0xFFu >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if ((byte & 0xC0) != 0x80) return {};
    code = code << 6 | (byte & 0x3F);
  }
  const bool overlong = (bytes == 3 && code < 0x800) || (bytes == 4 && code < 0x10000);
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  if (overlong || surrogate || code > 0x10FFFF) return {};
  return {code, bytes, true};
}

bool is_control(char32_t c) {
  // C0, DEL, C1, and the marks that reorder or split a line on the screen.
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0x2028 || c == 0x2029 ||
         (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

std::size_t columns_of(char32_t c) {
  if ((c >= 0x300 && c <= 0x36F) || (c >= 0x200B && c <= 0x200F) || (c >= 0xFE00 && c <= 0xFE0F)) {
    return 0;
  }
  const bool wide = (c >= 0x1100 && c <= 0x115F) || (c >= 0x2E80 && c <= 0xA4CF) ||
                    (c >= 0xAC00 && c <= 0xD7A3) || (c >= 0xF900 && c <= 0xFAFF) ||
                    (c >= 0xFE30 && c <= 0xFE6F) || (c >= 0xFF00 && c <= 0xFF60) ||
                    (c >= 0xFFE0 && c <= 0xFFE6) || (c >= 0x1F300 && c <= 0x1FAFF) ||
                    (c >= 0x20000 && c <= 0x3FFFD);
  return wide ? 2 : 1;
}

// Edits that turn one word into the other; two neighbours that changed places are one edit.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::string printable(std::string_view text, bool newlines) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Character c = first_character(text);
    if (!c.valid) {
      out += kReplacement;
    } else if (c.code == '\n' && newlines) {
      out += '\n';
    } else if (c.code == '\t' || c.code == '\n') {
      out += ' ';
    } else if (c.code == '\r' && text.size() > 1 && text[1] == '\n') {
      // A line's end as some programs write it.
    } else if (is_control(c.code)) {
      out += '?';
    } else {
      out += text.substr(0, c.bytes);
    }
    text.remove_prefix(c.bytes);
  }
  return out;
}

std::size_t display_width(std::string_view text) {
  std::size_t columns = 0;
  while (!text.empty()) {
    const Character c = first_character(text);
    columns += c.valid ? columns_of(c.code) : 1;
    text.remove_prefix(c.bytes);
  }
  return columns;
}

std::string truncated(std::string_view text, std::size_t columns) {
  if (display_width(text) <= columns) return std::string(text);
  if (columns == 0) return {};
  std::size_t used = 0;
  std::size_t end = 0;
  while (end < text.size()) {
    const Character c = first_character(text.substr(end));
    const std::size_t more = c.valid ? columns_of(c.code) : 1;
    if (used + more > columns - 1) break;
    used += more;
    end += c.bytes;
  }
  return std::string(text.substr(0, end)) + "…";
}

std::string padded(std::string_view text, std::size_t columns) {
  const std::size_t width = display_width(text);
  std::string out(text);
  if (width < columns) out.append(columns - width, ' ');
  return out;
}

std::vector<std::string> wrapped(std::string_view text, std::size_t columns) {
  std::vector<std::string> lines;
  std::string line;
  while (!text.empty()) {
    const std::size_t space = text.find(' ');
    const std::string_view word = text.substr(0, space);
    text.remove_prefix(space == std::string_view::npos ? text.size() : space + 1);
    if (word.empty()) continue;
    if (!line.empty() && display_width(line) + 1 + display_width(word) > columns) {
      lines.push_back(std::move(line));
      line.clear();
    }
    if (!line.empty()) line += ' ';
    line += word;
  }
  if (!line.empty() || lines.empty()) lines.push_back(std::move(line));
  return lines;
}

std::string closest(std::string_view word, std::span<const std::string> candidates) {
  if (word.size() > 64) return {};  // Nobody mistypes that much; and the table is quadratic.
  std::vector<std::string> begins;
  for (const std::string& candidate : candidates) {
    if (word.size() >= 2 && candidate.starts_with(word)) begins.push_back(candidate);
  }
  if (begins.size() == 1) return begins[0];

  std::string best;
  std::size_t least = word.size() <= 3 ? 1 : word.size() <= 7 ? 2 : 3;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < least || (best.empty() && distance == least)) {
      best = candidate;
      least = distance;
    }
  }
  return best;
}

namespace {

bool is_name_character(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '-' ||
         c == '_';
}

}  // namespace

std::string with_name_as(std::string_view text, std::string_view name, std::string_view instead) {
  std::string out;
  std::size_t at = 0;
  while (!name.empty()) {
    const std::size_t found = text.find(name, at);
    if (found == std::string_view::npos) break;
    const std::size_t end = found + name.size();
    const bool whole =
        (found == 0 || (!is_name_character(text[found - 1]) && text[found - 1] != '.')) &&
        (end == text.size() ||
         (!is_name_character(text[end]) &&
          !(text[end] == '.' && end + 1 < text.size() && is_name_character(text[end + 1]))));
    out += text.substr(at, found - at);
    out += whole ? instead : name;
    at = end;
  }
  out += text.substr(at);
  return out;
}

std::string first_match(const std::string& text, const char* pattern) {
  std::smatch match;
  return std::regex_search(text, match, std::regex(pattern)) ? match[1].str() : "";
}

}  // namespace dsi

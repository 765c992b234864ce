#include "hostfile/diagnostic.h"

#include <fmt/format.h>

namespace dsi {

std::string to_string(const Diagnostic& diagnostic) {
  std::string text = diagnostic.file;
  if (diagnostic.line > 0) text += fmt::format(":{}:{}", diagnostic.line, diagnostic.column);
  text += diagnostic.severity == Diagnostic::kError ? ": error: " : ": warning: ";
  text += diagnostic.message;
  if (!diagnostic.help.empty()) text += "\n  help: " + diagnostic.help;
  return text;
}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kLongest = 60;
  std::string out = "`";
  for (char c : text.substr(0, kLongest)) {
    auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  if (text.size() > kLongest) out += "...";
  return out + "`";
}

}  // namespace dsi

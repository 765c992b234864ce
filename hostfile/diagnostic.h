#pragma once

#include <string>
#include <string_view>

namespace dsi {

// One finding in a hostfile, at a place that an editor can jump to.
struct Diagnostic {
  enum Severity { kError, kWarning };
  Severity severity = kError;
  std::string file;
  int line = 0;    // From 1; 0: the file as a whole (it cannot be read, or is empty).
  int column = 0;  // From 1, in characters of UTF-8; a tab is one.
  std::string message;
  std::string help;  // Empty if there is nothing sensible to suggest.
  friend bool operator==(const Diagnostic&, const Diagnostic&) = default;
};

// "file:line:col: error: message" and, if there is one, a second line "  help: …", as compilers
// write it. No final newline.
std::string to_string(const Diagnostic& diagnostic);

// `text` in backquotes for a message: whatever a terminal could obey is escaped, and what is long
// is cut, because the text comes from a file that nobody has checked yet.
std::string in_quotes(std::string_view text);

}  // namespace dsi

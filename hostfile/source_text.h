#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "hostfile/diagnostic.h"

namespace dsi {

// What all formats have in common before the first word is read: byte order mark, line ends,
// comments. Comments become blanks, so that every column stays what it was.

struct SourceLine {
  int number = 0;
  std::string_view text;  // No line end; comments blanked out.
};

class SourceText {
 public:
  // `comments` false: `#` and `/` are ordinary characters (the command line has no comments).
  SourceText(std::string_view text, const std::string& file, bool comments = true);
  SourceText(const SourceText&) = delete;  // lines() point into text_.
  SourceText& operator=(const SourceText&) = delete;

  const std::vector<SourceLine>& lines() const { return lines_; }
  const std::vector<Diagnostic>& diagnostics() const { return diagnostics_; }
  // Not text at all: there is one diagnostic and no lines.
  bool is_binary() const { return binary_; }

 private:
  void cut_into_lines();
  void blank_out_comments();
  void report(Diagnostic::Severity severity, std::size_t offset, std::string message,
              std::string help);

  std::string text_;
  std::string file_;
  std::vector<SourceLine> lines_;
  std::vector<Diagnostic> diagnostics_;
  bool binary_ = false;
};

// The column of byte `offset`, as Diagnostic counts.
int column_of(std::string_view line, std::size_t offset);

inline bool is_blank(char c) {
  return c == ' ' || c == '\t';
}

}  // namespace dsi

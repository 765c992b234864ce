#include "hostfile/source_text.h"

#include <algorithm>

namespace dsi {

int column_of(std::string_view line, std::size_t offset) {
  auto starts_character = [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; };
  auto before = line.substr(0, std::min(offset, line.size()));
  return 1 + static_cast<int>(std::count_if(before.begin(), before.end(), starts_character));
}

SourceText::SourceText(std::string_view text, const std::string& file, bool comments)
    : file_(file) {
  if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff")) {
    binary_ = true;
    diagnostics_.push_back({Diagnostic::kError, file_, 1, 1, "the text is UTF-16, not UTF-8",
                            "save it as UTF-8, or convert it: iconv -f UTF-16 -t UTF-8"});
    return;
  }
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  text_ = text;
  if (std::size_t zero = text_.find('\0'); zero != text_.npos) {
    binary_ = true;
    report(Diagnostic::kError, zero, "not a text file: it holds a zero byte",
           "check that this is the right file");
    return;
  }
  if (comments) blank_out_comments();
  cut_into_lines();
}

void SourceText::cut_into_lines() {
  std::string_view rest = text_;
  for (int number = 1; !rest.empty(); ++number) {
    std::size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    while (line.ends_with('\r')) line.remove_suffix(1);
    lines_.push_back({number, line});
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
}

// `#` begins a comment wherever it stands outside quotes. So do `//` and `/*`, but not in `^path`,
// where they are part of a path.
void SourceText::blank_out_comments() {
  const std::string& text = text_;
  char quote = '\0';
  bool word_start = true;
  bool in_path = false;
  bool warned = false;  // Once is enough, and report() counts lines from the top.
  for (std::size_t i = 0; i < text.size();) {
    char c = text[i];
    if (c == '\n') {
      quote = '\0';  // A quote never spans lines: one that is forgotten must not hide the rest.
      word_start = true;
      in_path = false;
      ++i;
      continue;
    }
    if (quote != '\0') {
      if (c == quote) quote = '\0';
      ++i;
      continue;
    }
    bool slashes = c == '/' && !in_path && i + 1 < text.size();
    if (c == '#' || (slashes && text[i + 1] == '/')) {
      std::size_t end = std::min(text.find('\n', i), text.size());
      std::string_view comment = std::string_view(text).substr(i, end - i);
      if (!warned && word_start && comment.size() > 8 && comment.starts_with("#include") &&
          is_blank(comment[8])) {
        warned = true;
        report(Diagnostic::kWarning, i, "`#include` is read as a comment",
               "to read another file here, write ^FILE");
      }
      std::fill(text_.begin() + static_cast<std::ptrdiff_t>(i),
                text_.begin() + static_cast<std::ptrdiff_t>(end), ' ');
      i = end;
      continue;
    }
    if (slashes && text[i + 1] == '*') {
      std::size_t end = text.find("*/", i + 2);
      if (end == text.npos) {
        report(Diagnostic::kError, i, "the comment `/*` is never closed",
               "add `*/`, or begin the line with `#`");
        end = text.size();
      } else {
        end += 2;
      }
      for (; i < end; ++i) {
        if (text[i] != '\n') text_[i] = ' ';
      }
      word_start = true;
      continue;
    }
    if (word_start && c == '^') in_path = true;
    // Only where a word or a value begins: an apostrophe inside one is no quote.
    bool opens = word_start || text[i - 1] == '=' || (in_path && text[i - 1] == '^');
    if (opens && (c == '"' || c == '\'')) quote = c;
    word_start = is_blank(c) || c == ',';
    if (word_start) in_path = false;
    ++i;
  }
}

void SourceText::report(Diagnostic::Severity severity, std::size_t offset, std::string message,
                        std::string help) {
  std::string_view before = std::string_view(text_).substr(0, offset);
  std::size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0.
  int line = 1 + static_cast<int>(std::count(before.begin(), before.end(), '\n'));
  int column = column_of(std::string_view(text_).substr(line_start), offset - line_start);
  diagnostics_.push_back({severity, file_, line, column, std::move(message), std::move(help)});
}

}  // namespace dsi

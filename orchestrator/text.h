#pragma once

// Text for people: what is safe to print, how wide it is, and which word was meant.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dsi {

// What a terminal may be given: bytes that are no UTF-8 become U+FFFD and control characters '?',
// so that what a node says cannot move the cursor, change colours or end a line. A newline stays if
// `newlines`; a tab becomes a space.
std::string printable(std::string_view text, bool newlines = false);

// Columns that valid UTF-8 without control characters takes. Combining marks count 0, East Asian
// wide characters 2; close enough for names and messages, without a locale.
std::size_t display_width(std::string_view text);

// `text` if it fits in `columns`, else its beginning with "…" at the end. Never cuts a character.
std::string truncated(std::string_view text, std::size_t columns);

// `text` with spaces behind up to `columns`.
std::string padded(std::string_view text, std::size_t columns);

// Lines of at most `columns`, broken at spaces; a longer word has a line of its own.
std::vector<std::string> wrapped(std::string_view text, std::size_t columns);

// The candidate that was probably meant: the only one that begins with `word`, or the nearest by
// edit distance (a transposition counts once) if that is near. Empty if there is none.
std::string closest(std::string_view word, std::span<const std::string> candidates);

// `text` with `instead` for the host's name where that stands as a word of its own, so that the
// same reason on many hosts is the same text: host d is in many words.
std::string with_name_as(std::string_view text, std::string_view name, std::string_view instead);

// What the first group of the regular expression matches first; empty if nothing does.
std::string first_match(const std::string& text, const char* pattern);

}  // namespace dsi

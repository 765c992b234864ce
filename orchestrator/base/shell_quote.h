#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dsi {

// One word for a POSIX shell, whatever the text holds (spaces, quotes, newlines, a leading dash;
// a leading dash is still an option to the program that gets it: put `--` before it).
// For /bin/sh only; see deploy's bootstrap for what must also pass csh and fish.
std::string shell_quote(std::string_view word);

// Words quoted and joined by spaces: what a person can paste.
std::string shell_join(const std::vector<std::string>& words);

}  // namespace dsi

#pragma once

#include <string>
#include <string_view>

namespace dsi {

// What a key of a line is about, whatever a format calls it.
enum class Meaning { kSlots, kMaxSlots, kUser, kPort, kPlacement, kInterface };

struct Key {
  std::string_view name;  // Lower case, `_` for `-`.
  Meaning meaning;
};

// The key as the table has it: lower case, `_` for `-`.
std::string normalized(std::string_view key);

// nullptr if no format has such a key.
const Key* find_key(std::string_view name);

// "did you mean `slots`?", or empty.
std::string suggest_key(std::string_view name);

}  // namespace dsi

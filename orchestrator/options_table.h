#pragma once

// The one table of options: the parser, the help, the keys of the configuration, the suggestions
// and the manual page all follow from it.

#include <chrono>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "orchestrator/base/result.h"
#include "orchestrator/options.h"

namespace dsi {

// Where an option's value goes, and with that its type. An int without a value's name counts how
// often the option is given.
using OptionField =
    std::variant<std::monostate, bool Options::*, int Options::*, std::string Options::*,
                 std::vector<std::string> Options::*, std::filesystem::path Options::*,
                 std::vector<std::filesystem::path> Options::*, std::chrono::seconds Options::*>;

enum class OptionGroup { kHosts, kBuild, kNode, kOutput, kOther };

struct OptionSpec {
  std::string_view name;  // As the help writes it; '_' and '-' are the same to the reader of it.
  char letter = 0;
  std::string_view value;  // What the help calls its value; empty: it takes none.
  OptionField field;
  OptionGroup group;
  unsigned commands;  // Bits 1 << CommandKind: where it means something.
  std::string_view help;
  bool in_config = true;
  int least = 0;  // Of a number.
  int most = 0;
};

struct CommandSpec {
  std::string_view name;
  CommandKind kind;
  std::string_view help;
};

// A set of commands, as OptionSpec has it.
constexpr unsigned bit(CommandKind kind) {
  return 1u << static_cast<unsigned>(kind);
}
constexpr unsigned kEverywhere = ~0u;

std::span<const OptionSpec> option_table();
std::span<const CommandSpec> command_table();

// Without dashes in front, with '-' or '_' inside; nullptr if there is no such option.
const OptionSpec* find_option(std::string_view name);

// nullptr if there is no such command; -e has no name.
const CommandSpec* find_command(std::string_view name);

// "did you mean --hostfile?", or empty. With `for_config` the words are the configuration's keys.
std::string suggest_option(std::string_view name, bool for_config);

bool takes_value(const OptionSpec& option);

// The name with '-' for '_' and '_' for '-'.
std::string other_spelling(std::string_view name);

// "--hostfile".
std::string dashed(const OptionSpec& option);

// Why the two options cannot be given together, or an empty Error.
Error conflict_between(const OptionSpec& one, const OptionSpec& other);

}  // namespace dsi

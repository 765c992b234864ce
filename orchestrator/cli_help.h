#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "orchestrator/options_table.h"

namespace dsi {

// --help of the whole program, or of one command.
std::string help_text();
std::string help_text(const CommandSpec& command);

// The manual page, as roff: the same tables and what stands nowhere else.
std::string man_page();

// The groups of options with their titles, and the exit codes with their meanings, in order.
std::span<const std::pair<OptionGroup, std::string_view>> option_groups();
std::span<const std::pair<int, std::string_view>> exit_codes();

}  // namespace dsi

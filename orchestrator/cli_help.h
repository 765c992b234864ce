#pragma once

#include <string>

#include "orchestrator/options_table.h"

namespace dsi {

// --help of the whole program, or of one command.
std::string help_text();
std::string help_text(const CommandSpec& command);

}  // namespace dsi

#pragma once

// What the values of options may be, wherever they come from.

#include <string_view>
#include <vector>

#include "orchestrator/base/result.h"
#include "orchestrator/options.h"
#include "orchestrator/options_table.h"

namespace dsi {

// Checks the value and puts it into the options; a list or a repeated path is added to. The error
// reads on after the option's name: "needs a number from 1 to 4096, not \"many\"".
Result<void> set_option(Options& options, const OptionSpec& option, std::string_view value);

// One Error that to_string() prints as all of them. Precondition: not empty.
Error all_of(const std::vector<Error>& errors);

}  // namespace dsi

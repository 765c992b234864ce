#pragma once

// What a value may be, where its type does not say it. Errors continue the option's name: "--prefix
// needs an absolute path", and come from the command line and the configuration alike.

#include <string_view>

#include "orchestrator/base/result.h"

namespace dsi {

// Where releases are put on a node goes through whatever login shell the user has there, so only
// characters that sh, csh and fish read alike inside quotes are let through.
Result<void> check_prefix(std::string_view prefix);
// A name that ssh may be told to log in with.
Result<void> check_user(std::string_view user);
// An interpreter, here or on a host.
Result<void> check_python(std::string_view path);

// For the option of that name; what has no rule is good.
Result<void> check_value(std::string_view option, std::string_view value);

}  // namespace dsi

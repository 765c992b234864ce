#pragma once

// Why a build failed, where the failure is one that many people meet.

#include <string>
#include <string_view>

#include "orchestrator/base/result.h"

namespace dsi {

// What is wrong and what to do about it, from the build's log. Empty: no known pattern is in it.
Error explain_failure(std::string_view log);

// The part of a build's log that shows the failure: around the first error of a compiler, else the
// end, without what pip says after it.
std::string failing_part(std::string_view log);

}  // namespace dsi

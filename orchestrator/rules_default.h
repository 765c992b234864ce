#pragma once

#include <string_view>

namespace dsi {

// rules.yaml as it was when the program was built.
extern const std::string_view kDefaultRules;

}  // namespace dsi

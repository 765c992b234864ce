#pragma once

#include <string>

namespace dsi::agent {

// `ds-agent serve NONCE PREFIX`: greeting, hello, then requests until the head leaves. Returns the
// program's exit code.
int serve(const std::string& nonce, const std::string& prefix, int in, int out);

}  // namespace dsi::agent

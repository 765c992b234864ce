#pragma once

#include <string>
#include <vector>

namespace dsi::agent {

// `ds-report [--json] [PREFIX]`: what is installed on this node, op by op, in the form that
// DeepSpeed's users know. Exit code 0 if every op is ok, 1 if not, 2 for a wrong usage.
int ds_report(const std::vector<std::string>& arguments);

}  // namespace dsi::agent

#pragma once

// In what order and in how many steps a run goes over its hosts, and when it goes no further. Pure.

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/base/result.h"

namespace dsi {

// "1,10%,50%": how many hosts each batch has, of so many in all; the last one repeats until no host
// is left. A percentage is of all hosts, rounded down, at least one host. Empty: one batch of all.
Result<std::vector<std::size_t>> batch_sizes(std::string_view rule, std::size_t hosts);

// "3" or "10%": how many hosts may fail before nothing new is begun. Empty: none.
Result<std::size_t> failures_allowed(std::string_view rule, std::size_t hosts);

// "2h", "90m", "1h30m", "45s": at least a second, at most a week.
Result<std::chrono::seconds> parse_window(std::string_view text);

// The numbers 0 … n-1 such that hosts of one rack are far apart: one of each rack in turn, in the
// order in which the racks are first named. `racks` has the rack of each host; empty: a rack of its
// own for all that have none.
std::vector<std::size_t> spread_over(const std::vector<std::string>& racks);

}  // namespace dsi

#include "orchestrator/distribute/rate_limit.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string>
#include <utility>

namespace dsi::distribute {

Result<std::uint64_t> parse_rate(std::string_view text) {
  if (text.empty()) return 0;
  constexpr std::array<std::pair<std::string_view, double>, 11> kUnits = {{{"bit", 1.0 / 8},
                                                                           {"kbit", 1e3 / 8},
                                                                           {"mbit", 1e6 / 8},
                                                                           {"gbit", 1e9 / 8},
                                                                           {"b", 1},
                                                                           {"kb", 1 << 10},
                                                                           {"mb", 1 << 20},
                                                                           {"gb", 1 << 30},
                                                                           {"kib", 1 << 10},
                                                                           {"mib", 1 << 20},
                                                                           {"gib", 1 << 30}}};
  double number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string unit(end, text.data() + text.size());
  std::transform(unit.begin(), unit.end(), unit.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  if (unit.ends_with("/s")) unit.resize(unit.size() - 2);
  for (const auto& [name, bytes] : kUnits) {
    if (error != std::errc{} || unit != name) continue;
    double rate = number * bytes;
    // Below that a chunk takes longer than anybody's patience.
    if (!std::isfinite(rate) || rate < 32 * 1024) {
      return fail_with_help("is too slow: the least is 32 KiB a second",
                            "give a rate such as 100mbit or 20MB");
    }
    return static_cast<std::uint64_t>(std::min(rate, 1e15));
  }
  return fail_with_help(fmt::format("needs a rate, not \"{}\"", text),
                        "write it as 100mbit or 1.5gbit (bits a second), or as 20MB (bytes)");
}

void RateLimit::wait_for(std::size_t bytes, std::stop_token stop) {
  if (rate_ == 0) return;
  Clock::time_point begin;
  {
    std::lock_guard lock(mutex_);
    begin = std::max(free_at_, Clock::now());
    free_at_ = begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(
                           static_cast<double>(bytes) / static_cast<double>(rate_)));
  }
  std::mutex asleep;
  std::condition_variable_any never;
  std::unique_lock lock(asleep);
  never.wait_until(lock, stop, begin, [] { return false; });
}

}  // namespace dsi::distribute

#include "orchestrator/batches.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "orchestrator/text.h"

namespace dsi {
namespace {

using std::string_view;

// A number of hosts or, with '%', of hundredths of them.
struct Amount {
  std::size_t number = 0;
  bool percent = false;

  std::size_t of(std::size_t hosts) const { return percent ? hosts * number / 100 : number; }
};

Result<Amount> parse_amount(string_view text) {
  Amount amount;
  string_view digits = text;
  if (digits.ends_with('%')) {
    amount.percent = true;
    digits.remove_suffix(1);
  }
  constexpr std::size_t kMost = 10'000'000;
  auto [end, problem] =
      std::from_chars(digits.data(), digits.data() + digits.size(), amount.number);
  bool good = problem == std::errc{} && end == digits.data() + digits.size() &&
              amount.number <= (amount.percent ? 100 : kMost);
  if (!good) return fail("\"{}\" is no number of hosts and no percentage", printable(text));
  return amount;
}

}  // namespace

Result<std::vector<std::size_t>> batch_sizes(string_view rule, std::size_t hosts) {
  std::vector<std::size_t> sizes;
  if (rule.empty()) {
    if (hosts > 0) sizes.push_back(hosts);
    return sizes;
  }
  constexpr const char* kHelp = "for example 1,10%,50%: one host, a tenth, then half and half";
  std::vector<Amount> amounts;
  for (std::size_t at = 0; at <= rule.size();) {
    std::size_t comma = std::min(rule.find(',', at), rule.size());
    auto amount = parse_amount(rule.substr(at, comma - at));
    if (!amount) return fail_with_help(amount.error().what, kHelp);
    if (amount->number == 0) return fail_with_help("a batch of no hosts never ends", kHelp);
    amounts.push_back(*amount);
    at = comma + 1;
  }
  std::size_t left = hosts;
  for (std::size_t i = 0; left > 0; ++i) {
    std::size_t size = std::max<std::size_t>(amounts[std::min(i, amounts.size() - 1)].of(hosts), 1);
    sizes.push_back(std::min(size, left));
    left -= sizes.back();
  }
  return sizes;
}

Result<std::size_t> failures_allowed(string_view rule, std::size_t hosts) {
  if (rule.empty()) return std::size_t{0};
  auto amount = parse_amount(rule);
  if (!amount) return fail_with_help(amount.error().what, "for example 2, or 5%");
  return amount->of(hosts);
}

Result<std::chrono::seconds> parse_window(string_view text) {
  constexpr const char* kHelp = "for example 2h, 90m or 1h30m";
  constexpr std::uint64_t kWeek = 7 * 24 * 3600;
  std::uint64_t seconds = 0;
  std::uint64_t last_unit = kWeek;  // Units come from large to small, each once.
  string_view left = text;
  while (!left.empty()) {
    std::uint64_t number = 0;
    auto [end, problem] = std::from_chars(left.data(), left.data() + left.size(), number);
    std::size_t digits = static_cast<std::size_t>(end - left.data());
    std::uint64_t unit = 0;
    if (problem == std::errc{} && digits < left.size()) {
      char letter = left[digits];
      unit = letter == 'h' ? 3600 : letter == 'm' ? 60 : letter == 's' ? 1 : 0;
    }
    if (unit == 0 || unit >= last_unit || number > kWeek) {
      return fail_with_help(fmt::format("needs a time, not \"{}\"", printable(text)), kHelp);
    }
    last_unit = unit;
    seconds += number * unit;
    left.remove_prefix(digits + 1);
  }
  if (seconds == 0 || seconds > kWeek) {
    return fail_with_help(
        fmt::format("needs a time of a second to a week, not \"{}\"", printable(text)), kHelp);
  }
  return std::chrono::seconds(seconds);
}

std::vector<std::size_t> spread_over(const std::vector<std::string>& racks) {
  std::vector<std::vector<std::size_t>> by_rack;
  std::map<std::string, std::size_t> number_of;
  for (std::size_t i = 0; i < racks.size(); ++i) {
    auto [at, is_new] = number_of.emplace(racks[i], by_rack.size());
    if (is_new) by_rack.emplace_back();
    by_rack[at->second].push_back(i);
  }
  std::vector<std::size_t> order;
  for (std::size_t round = 0; order.size() < racks.size(); ++round) {
    for (const std::vector<std::size_t>& rack : by_rack) {
      if (round < rack.size()) order.push_back(rack[round]);
    }
  }
  return order;
}

}  // namespace dsi

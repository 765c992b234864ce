#include "orchestrator/value_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "orchestrator/batches.h"
#include "orchestrator/distribute/rate_limit.h"
#include "orchestrator/text.h"

namespace dsi {

using std::string_view;

namespace {

Result<void> check_topology(string_view how) {
  if (how == "auto" || how == "swarm" || how == "star") return {};
  return fail_with_help(fmt::format("knows no \"{}\"", printable(how)), "give auto, swarm or star");
}

Result<void> check_name(string_view name) {
  const bool good = name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
                      return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                             (c >= 'A' && c <= 'Z') || c == '-' || c == '_';
                    });
  if (good) return {};
  return fail_with_help(fmt::format("cannot be \"{}\"", printable(name)),
                        "use letters, digits, - and _");
}

// One line of a unit file.
Result<void> check_line(string_view text) {
  if (printable(text) == text) return {};
  return fail("cannot have control characters: \"{}\"", printable(text));
}

Result<void> check_via(string_view how) {
  if (how == "ssh" || how == "slurm") return {};
  return fail_with_help(fmt::format("knows no \"{}\"", printable(how)), "give ssh or slurm");
}

Result<void> check_busy(string_view how) {
  if (how == "proceed" || how == "wait" || how == "skip") return {};
  return fail_with_help(fmt::format("knows no \"{}\"", printable(how)),
                        "give proceed, wait or skip");
}

// The value may be a secret, so no error quotes it.
Result<void> check_webhook(string_view url) {
  const bool known = url.starts_with("https://") || url.starts_with("http://");
  const bool plain =
      std::all_of(url.begin(), url.end(), [](unsigned char c) { return c > 0x20 && c < 0x7f; });
  if (known && plain) return {};
  return fail_with_help("needs a URL of a webhook",
                        "for example https://host/path, without spaces");
}

Result<void> check_order(string_view how) {
  if (how == "hostfile" || how == "racks") return {};
  return fail_with_help(fmt::format("knows no \"{}\"", printable(how)), "give hostfile or racks");
}

Result<void> check_ports(string_view range) {
  int first = 0;
  int last = 0;
  const std::size_t dash = range.find('-');
  const string_view left = range.substr(0, dash);
  const string_view right = dash == range.npos ? left : range.substr(dash + 1);
  auto read = [](string_view digits, int& number) {
    auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    return error == std::errc{} && end == digits.data() + digits.size();
  };
  const bool good =
      read(left, first) && read(right, last) && 1 <= first && first <= last && last <= 65535;
  if (good) return {};
  return fail_with_help(fmt::format("needs ports A-B, not \"{}\"", printable(range)),
                        "give two numbers from 1 to 65535, the smaller one first: 20000-20100");
}

}  // namespace

Result<void> check_prefix(string_view prefix) {
  constexpr string_view kPunctuation = "/._+@:=,~ -";
  if (!prefix.starts_with('/')) {
    return fail_with_help(fmt::format("needs an absolute path, not \"{}\"", printable(prefix)),
                          "begin it with /; it is a folder on the hosts");
  }
  for (char c : prefix) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    if (!plain && kPunctuation.find(c) == kPunctuation.npos) {
      return fail_with_help(
          fmt::format("has a character that cannot be used: \"{}\"", printable(prefix)),
          "use letters, digits, spaces and / . _ + @ : = , ~ - only");
    }
  }
  bool any_part = false;
  for (const std::filesystem::path& part : std::filesystem::path(prefix)) {
    if (part == "..") {
      return fail_with_help(fmt::format("has a part \"..\": \"{}\"", prefix),
                            "write the path without it");
    }
    any_part = any_part || (part != "/" && part != "." && !part.empty());
  }
  if (!any_part) return fail_with_help("cannot be /", "name a folder of its own");
  return {};
}

Result<void> check_user(string_view user) {
  constexpr string_view kPunctuation = "._+@-";
  const bool good =
      !user.empty() && user[0] != '-' && std::all_of(user.begin(), user.end(), [&](char c) {
        return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
               kPunctuation.find(c) != kPunctuation.npos;
      });
  if (good) return {};
  return fail_with_help(fmt::format("needs the name of a user, not \"{}\"", printable(user)),
                        "use letters, digits and . _ + @ - only");
}

Result<void> check_python(string_view path) {
  if (!path.starts_with('/')) {
    return fail_with_help(fmt::format("needs an absolute path, not \"{}\"", printable(path)),
                          "name the interpreter itself: /opt/env/bin/python");
  }
  return {};
}

Result<void> check_value(string_view option, string_view value) {
  if (option == "prefix") return check_prefix(value);
  if (option == "python") return check_python(value);
  if (option == "topology") return check_topology(value);
  if (option == "peer-ports") return check_ports(value);
  if (option == "batch") return batch_sizes(value, 1).map([](const auto&) {});
  if (option == "max-fail") return failures_allowed(value, 1).map([](auto) {});
  if (option == "busy") return check_busy(value);
  if (option == "window" || option == "drain-limit" || option == "busy-limit")
    return parse_window(value).map([](auto) {});
  if (option == "name") return check_name(value);
  if (option == "at" || option == "random-delay" || option == "reason") return check_line(value);
  if (option == "notify-url") return check_webhook(value);
  if (option == "to") return check_name(value);
  if (option == "via") return check_via(value);
  if (option == "order") return check_order(value);
  if (option == "rate-limit") return distribute::parse_rate(value).map([](auto) {});
  return {};
}

}  // namespace dsi

#include "hostfile/host_name.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>

#include "hostfile/diagnostic.h"

namespace dsi {
namespace {

// Not <cctype>: its answers depend on the locale.
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_alnum(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool is_name_char(char c) {
  return is_alnum(c) || c == '-' || c == '.' || c == '_';
}

// Says what is wrong with a byte that is not allowed in `noun`.
Refusal refuse_byte(std::string_view text, std::size_t offset, std::string_view noun) {
  auto byte = static_cast<unsigned char>(text[offset]);
  if (text.substr(offset, 2) == "\xc2\xa0") {
    return {offset, fmt::format("a no-break space in the {} {}", noun, in_quotes(text)),
            "retype it as an ordinary blank; it often comes from a web page"};
  }
  if (byte >= 0x80) {
    return {offset, fmt::format("a character outside ASCII in the {} {}", noun, in_quotes(text)),
            "write an international name in its ASCII form: xn--..."};
  }
  if (byte < 0x20 || byte == 0x7f) {
    return {offset, fmt::format("the control character 0x{:02x} in the {}", byte, noun),
            "delete the character"};
  }
  return {offset,
          fmt::format("{} is not allowed in the {} {}",
                      byte == '`' ? "a backquote" : in_quotes(text.substr(offset, 1)), noun,
                      in_quotes(text)),
          "only letters, digits, `-`, `.` and `_` are; nothing here is run by a shell"};
}

std::optional<Refusal> refuse_start(std::string_view name) {
  if (name.empty()) return Refusal{0, "the host name is missing", {}};
  if (name[0] == '-') {
    return Refusal{0,
                   fmt::format("the host name {} begins with `-`: a program could take it for an "
                               "option",
                               in_quotes(name)),
                   "no host is called that; to leave a host out, write it behind a list: "
                   "node[01-08],-node03"};
  }
  if (name[0] == '.') {
    return Refusal{0, fmt::format("the host name {} begins with `.`", in_quotes(name)), {}};
  }
  return std::nullopt;
}

// Resolvers take 12, 1.2 and 0x7f.1 for IPv4 addresses, each for one that nobody meant.
bool reads_as_number(std::string_view name) {
  if (name.ends_with('.')) name.remove_suffix(1);
  std::string_view label = name.substr(name.find_last_of('.') + 1);
  if (label.empty()) return false;
  if (std::all_of(label.begin(), label.end(), is_digit)) return true;
  if (!label.starts_with("0x") && !label.starts_with("0X")) return false;
  return label.find_first_not_of("0123456789abcdefABCDEF", 2) == label.npos;
}

bool is_ipv4_address(std::string_view text) {
  in_addr address;
  return ::inet_pton(AF_INET, std::string(text).c_str(), &address) == 1;
}

}  // namespace

bool is_ipv6_address(std::string_view text) {
  std::size_t percent = std::min(text.find('%'), text.size());
  if (percent < text.size()) {
    std::string_view zone = text.substr(percent + 1);
    if (zone.empty() || zone.size() > 15 || !is_alnum(zone[0]) ||
        !std::all_of(zone.begin(), zone.end(), is_name_char)) {
      return false;
    }
  }
  // c_str() would end at a zero byte and accept what stands before it.
  if (percent > INET6_ADDRSTRLEN || text.find('\0') != text.npos) return false;
  in6_addr address;
  return ::inet_pton(AF_INET6, std::string(text.substr(0, percent)).c_str(), &address) == 1;
}

std::optional<Refusal> refuse_name_pattern(std::string_view pattern) {
  if (auto refusal = refuse_start(pattern)) return refusal;
  int depth = 0;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    char c = pattern[i];
    if (c == '[') ++depth;
    if (c == '[' || c == ']' || is_name_char(c)) continue;
    if (c == ',' && depth > 0) continue;
    return refuse_byte(pattern, i, "host name");
  }
  return std::nullopt;
}

std::optional<Refusal> refuse_host_name(std::string_view name) {
  if (auto refusal = refuse_start(name)) return refusal;
  if (is_ipv6_address(name)) return std::nullopt;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (!is_name_char(name[i])) return refuse_byte(name, i, "host name");
  }
  if (name.size() > 253) return Refusal{0, "a host name of more than 253 characters", {}};
  if (std::size_t dots = name.find(".."); dots != name.npos) {
    return Refusal{dots, fmt::format("two dots in a row in the host name {}", in_quotes(name)), {}};
  }
  if (reads_as_number(name) && !is_ipv4_address(name)) {
    return Refusal{
        0, fmt::format("the host name {} is a number, but not an IPv4 address", in_quotes(name)),
        "a resolver would take it for an address; write the name or all four parts"};
  }
  return std::nullopt;
}

std::optional<Refusal> refuse_user_name(std::string_view user) {
  if (user.empty()) return Refusal{0, "the user name is missing", {}};
  if (user[0] == '-') {
    return Refusal{0, fmt::format("the user name {} begins with `-`", in_quotes(user)), {}};
  }
  for (std::size_t i = 0; i < user.size(); ++i) {
    // `@` and `+` occur in names from a directory service: alice@example.org, lab+alice.
    if (!is_name_char(user[i]) && user[i] != '@' && user[i] != '+') {
      return refuse_byte(user, i, "user name");
    }
  }
  if (user.size() > 255) return Refusal{0, "a user name of more than 255 characters", {}};
  return std::nullopt;
}

std::string canonical_name(std::string_view name) {
  if (name.find(':') != name.npos) {
    std::size_t percent = std::min(name.find('%'), name.size());
    in6_addr address;
    char text[INET6_ADDRSTRLEN];
    if (::inet_pton(AF_INET6, std::string(name.substr(0, percent)).c_str(), &address) == 1 &&
        ::inet_ntop(AF_INET6, &address, text, sizeof text) != nullptr) {
      return text + std::string(name.substr(percent));
    }
  }
  std::string lower(name);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  if (lower.ends_with('.')) lower.pop_back();
  return lower;
}

}  // namespace dsi

#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace dsi {

// The gate: what passes here ends in ssh's hands, in log lines and in paths, so it is a list of
// what is allowed and never one of what is forbidden.

struct Refusal {
  std::size_t offset = 0;  // The byte that is wrong.
  std::string why;
  std::string help;
};

// nullopt: a host name, an IPv4 address, or an IPv6 address without brackets (with a zone or not).
std::optional<Refusal> refuse_host_name(std::string_view name);

// The same for text that still has ranges in it (node[01-03]): only its characters are looked at,
// and the start; the names it expands to have to pass refuse_host_name.
std::optional<Refusal> refuse_name_pattern(std::string_view pattern);

std::optional<Refusal> refuse_user_name(std::string_view user);

// Also with a zone: fe80::1%eth0.
bool is_ipv6_address(std::string_view text);

// Equal for two ways to write one name: lower case, no final dot, IPv6 in its shortest form.
std::string canonical_name(std::string_view name);

}  // namespace dsi

#pragma once

// Where other nodes reach this one, and how this one reaches them.

#include <cstdint>
#include <string>
#include <vector>

#include "orchestrator/base/result.h"
#include "orchestrator/base/unique_fd.h"

namespace dsi::agent {

struct Listener {
  UniqueFd socket;  // Non-blocking; IPv6 and IPv4 where there are both.
  std::uint16_t port = 0;
};

// `ports` is "A-B", tried in random order, or empty: any that is free.
Result<Listener> listen_on(const std::string& ports);

// Addresses of this node, the likeliest first: the one that the head came by ($SSH_CONNECTION),
// then those of the interfaces; loopback only if there is nothing else.
std::vector<std::string> own_addresses();

// A connection under way to a numeric address: non-blocking, and writable once it stands.
Result<UniqueFd> start_connecting(const std::string& address, std::uint16_t port);

}  // namespace dsi::agent

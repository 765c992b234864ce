#pragma once

#include <cstdint>
#include <string>

namespace dsi {

// One host to work on, as a hostfile or the command line named it.
struct Host {
  std::string name;        // Name or address, without brackets: "node01", "fe80::1%eth0".
  std::string user;        // Empty: what ssh's configuration says.
  std::uint16_t port = 0;  // 0: what ssh's configuration says.
  int slots = 0;           // Processes that fit; 0 if not said. DeepSpeed: GPUs of the host.
  int max_slots = 0;       // Open MPI's bound for oversubscription; 0 if not said.
  int line = 0;            // Where it stands in its file, from 1; 0 if it came from elsewhere.
  friend bool operator==(const Host&, const Host&) = default;
};

}  // namespace dsi

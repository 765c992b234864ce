#pragma once

// Which process a rank is, so that the others can find out whether it still runs.

#include <cstdint>

namespace ds {

struct ProcessIdentity {
  std::int32_t pid = 0;
  std::uint64_t start_time = 0;  // Clock ticks after boot: a pid that was given out again differs.
  std::uint64_t pid_namespace = 0;  // In which `pid` counts.
};

ProcessIdentity this_process();

// True only if it is certain: it has ended (as a zombie, too), or its pid is another process's now.
// False for one in another pid namespace, of which nothing can be known.
bool has_ended(const ProcessIdentity& process);

}  // namespace ds

#pragma once

#include <cstdio>

namespace ds {

// Of what uname() calls the release: "6.1.0-28-amd64" is at least 6.1. False for what has no
// number.
inline bool is_kernel_at_least(const char* release, int major, int minor) {
  int found_major = 0, found_minor = 0;
  if (std::sscanf(release, "%d.%d", &found_major, &found_minor) < 1) return false;
  return found_major != major ? found_major > major : found_minor >= minor;
}

}  // namespace ds

// What the rest takes from a C and a C++ library, for a program that has neither. Where it is part
// of a program that has them this file is left out.

#include <cstddef>

#include "orchestrator/facts/kernel.h"

// A loop that looks for a byte must not become a call of strlen() or memchr(), which are below.
#if !defined(__clang__)
#pragma GCC optimize("no-tree-loop-distribute-patterns")
#endif

// What <string_view> has for a place that is not there. Nothing here asks for one.
namespace std {
void __throw_out_of_range_fmt(const char*, ...) {  // NOLINT: libstdc++'s name.
  sys_exit(70);
}
}  // namespace std

extern "C" std::size_t strlen(const char* text) {
  std::size_t size = 0;
  while (text[size] != '\0') ++size;
  return size;
}

extern "C" void* memchr(const void* at, int value, std::size_t size) {
  const auto* bytes = static_cast<const unsigned char*>(at);
  for (std::size_t i = 0; i < size; ++i) {
    if (bytes[i] == static_cast<unsigned char>(value)) return const_cast<unsigned char*>(bytes + i);
  }
  return nullptr;
}

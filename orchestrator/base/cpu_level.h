#pragma once

#include <string>

namespace dsi {

// The level of this machine's processor as the x86-64 psABI has them: "x86-64-v3". Empty on other
// architectures, whose code nobody builds for a level here.
inline std::string cpu_level() {
#if defined(__x86_64__) && defined(__clang__) && __clang_major__ < 18
  return "x86-64";  // That clang has no names for the levels; it checks the source and builds
                    // nothing.
#elif defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("x86-64-v4")) return "x86-64-v4";
  if (__builtin_cpu_supports("x86-64-v3")) return "x86-64-v3";
  if (__builtin_cpu_supports("x86-64-v2")) return "x86-64-v2";
  return "x86-64";
#else
  return "";
#endif
}

}  // namespace dsi

#include "orchestrator/environment/base.h"

#include "orchestrator/elf.h"

namespace dsi {

std::span<const DebianBase> debian_bases() {
  // liburing 0.7 knows too little of io_uring, and 2.3 asks nothing newer of the C library than
  // 2.4, so that the archive in liburing-dev serves on bullseye as well.
  static const std::vector<DebianBase> bases = {
      {"bullseye",
       11,
       "2.31",
       "3.4.28",
       "",
       {9, 10},
       false,
       "bookworm",
       {"liburing-dev", "liburing2"}},
      {"bookworm", 12, "2.36", "3.4.30", "1.13", {11, 12}, true, "", {}},
      {"trixie", 13, "2.41", "3.4.33", "2.6", {12, 13, 14}, true, "", {}},
  };
  return bases;
}

const DebianBase* find_base(std::string_view suite) {
  for (const DebianBase& base : debian_bases()) {
    if (base.suite == suite) return &base;
  }
  return nullptr;
}

const DebianBase* newest_base_for(std::string_view glibc, std::string_view glibcxx) {
  const DebianBase* newest = nullptr;
  for (const DebianBase& base : debian_bases()) {
    const bool fits = (glibc.empty() || !version_less(glibc, base.glibc)) &&
                      (glibcxx.empty() || !version_less(glibcxx, base.glibcxx));
    if (fits) newest = &base;
  }
  return newest;
}

int newest_compiler_for(std::string_view cuda) {
  struct Limit {
    std::string_view from;
    int compiler;
  };
  constexpr Limit kLimits[] = {{"13.0", 15}, {"12.8", 14}, {"12.4", 13}, {"12.0", 12},
                               {"11.5", 11}, {"11.1", 10}, {"11.0", 9}};
  for (const Limit& limit : kLimits) {
    if (!version_less(cuda, limit.from)) return limit.compiler;
  }
  return 0;
}

std::string debian_architecture(std::string_view machine) {
  if (machine == "x86_64") return "amd64";
  if (machine == "aarch64") return "arm64";
  return "";
}

}  // namespace dsi

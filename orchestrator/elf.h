#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "orchestrator/base/result.h"

namespace dsi {

// What a shared object asks of the machine that loads it.
struct ElfNeeds {
  std::string machine;                 // "x86_64", "aarch64", or "machine <number>".
  std::vector<std::string> libraries;  // DT_NEEDED, in the file's order.
  // Highest version of each symbol family: {"GLIBC": "2.34", "GLIBCXX": "3.4.30"}.
  std::map<std::string, std::string> symbols;
  // Level of x86-64 that all its code needs: 2 to 4, as its GNU property says (the linker's
  // -z x86-64-v3). 0: none is said, so the lowest. The loader of glibc refuses such a file
  // elsewhere.
  int isa_level = 0;
};

Result<ElfNeeds> read_elf_needs(const std::filesystem::path& path);

// True if the shared object defines `symbol` for others: an extension module defines PyInit_<name>.
Result<bool> defines_symbol(const std::filesystem::path& path, std::string_view symbol);

// True if dotted version a is lower than b, part by part as numbers: 2.9 < 2.34.
bool version_less(std::string_view a, std::string_view b);

}  // namespace dsi

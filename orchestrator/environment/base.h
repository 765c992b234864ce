#pragma once

// What compilers and Debian releases can do: the tables that an environment is chosen from. Pure.

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dsi {

// A Debian release to build in. What is compiled in it runs on every host whose C and C++ libraries
// are not older than its own.
struct DebianBase {
  std::string_view suite;    // "bullseye"
  int release = 0;           // 11
  std::string_view glibc;    // Of its libc6: "2.31".
  std::string_view glibcxx;  // Of its libstdc++6: "3.4.28".
  std::string_view torch;    // Of its libtorch-dev: "1.13"; empty: none that the ops compile with.
  std::vector<int> compilers;  // Its g++-N that compile the ops, ascending.
  bool cmake = true;           // Its CMake is new enough; else one comes from the Python index.
  // What is too old in it and taken from this later release, where it needs nothing newer than
  // what is here.
  std::string_view later;
  std::vector<std::string_view> from_later;
};

// Oldest first.
std::span<const DebianBase> debian_bases();
const DebianBase* find_base(std::string_view suite);  // nullptr: there is none.

// The newest base whose libraries are not newer than these; an empty version does not limit.
// nullptr: all are newer.
const DebianBase* newest_base_for(std::string_view glibc, std::string_view glibcxx);

// The highest g++ that nvcc of this CUDA takes as its host compiler ("12.4" → 13); 0: not known.
// Source: the table of host compilers in NVIDIA's installation guide for Linux.
int newest_compiler_for(std::string_view cuda);

// What Debian calls an architecture of `uname -m`: "x86_64" → "amd64"; empty: no base has it.
std::string debian_architecture(std::string_view machine);

}  // namespace dsi

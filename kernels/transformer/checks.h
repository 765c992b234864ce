#pragma once

// What a call is refused for.

#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>

#include "transformer.h"

namespace ds::transformer {

[[noreturn]] inline void refuse(const char* function, const std::string& what) {
  throw std::invalid_argument(std::string("ds::") + function + ": " + what);
}

// Whether a call of these sizes has elements.
inline bool check_sizes(const char* function, DType dtype,
                        std::initializer_list<std::int64_t> sizes) {
  constexpr std::int64_t kMost = std::int64_t{1} << 48;
  if (dtype > DType::bf16) refuse(function, "unknown dtype");
  for (const std::int64_t size : sizes) {
    if (size < 0) refuse(function, "a size is negative");
  }
  std::int64_t all = 1;
  for (const std::int64_t size : sizes) {
    if (size == 0) return false;
    if (all > kMost / size) refuse(function, "there are more than 2^48 elements");
    all *= size;
  }
  return true;
}

inline void check_pointers(const char* function, std::initializer_list<const void*> pointers) {
  for (const void* pointer : pointers) {
    if (pointer == nullptr) refuse(function, "a pointer is null");
  }
}

inline void check_dropout(const char* function, const DropoutOptions& dropout) {
  if (!(dropout.ratio >= 0.0 && dropout.ratio < 1.0)) {
    refuse(function, "a dropout ratio is at least 0 and less than 1 (it is " +
                         std::to_string(dropout.ratio) + ")");
  }
  if (dropout.source.device != nullptr) {
    refuse(function, "on the CPU, seed and offset are given by value");
  }
}

}  // namespace ds::transformer

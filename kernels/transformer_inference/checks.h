#pragma once

// What a call is refused for.

#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>

#include "transformer_inference.h"

namespace ds::transformer_inference {

[[noreturn]] inline void refuse(const char* function, const std::string& what) {
  throw std::invalid_argument(std::string("ds::") + function + ": " + what);
}

// Whether a call of these sizes has elements.
inline bool check_sizes(const char* function, std::initializer_list<std::int64_t> sizes) {
  constexpr std::int64_t kMost = std::int64_t{1} << 48;
  std::int64_t all = 1;
  for (const std::int64_t size : sizes) {
    if (size < 0) refuse(function, "a size is negative");
  }
  for (const std::int64_t size : sizes) {
    if (size == 0) return false;
  }
  for (const std::int64_t size : sizes) {
    if (all > kMost / size) refuse(function, "there are more than 2^48 elements");
    all *= size;
  }
  return true;
}

struct Pointer {
  const char* name;
  const void* at;
  bool may_be_null;
};

inline void check_pointers(const char* function, DType dtype,
                           std::initializer_list<Pointer> pointers) {
  if (dtype > DType::bf16) refuse(function, "unknown dtype");
  for (const Pointer& p : pointers) {
    if (p.at == nullptr && !p.may_be_null) refuse(function, std::string(p.name) + " is null");
    if (reinterpret_cast<std::uintptr_t>(p.at) % (dtype == DType::f32 ? 4 : 2) != 0) {
      refuse(function, std::string(p.name) + " is not aligned to its elements");
    }
  }
}

inline void check_terms(const char* function, const ScoreTerms& terms) {
  if (terms.window < 0) refuse(function, "window is negative");
}

}  // namespace ds::transformer_inference

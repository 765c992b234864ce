#pragma once

// What a call is refused for, and in which words it is copied: pure functions, tested without a
// device.

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <stdexcept>
#include <string>

#include "random_ltd.h"

namespace ds::random_ltd {

constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();

[[noreturn]] inline void refuse(const char* function, const std::string& what) {
  throw std::invalid_argument(std::string("ds::") + function + ": " + what);
}

inline void check_sizes(const char* function, std::initializer_list<std::int64_t> sizes) {
  for (const std::int64_t size : sizes) {
    if (size < 0) refuse(function, "a size is negative");
  }
}

inline void check_pointer(const char* function, const char* name, const void* pointer,
                          std::uintptr_t alignment) {
  if (pointer == nullptr) refuse(function, std::string(name) + " is null");
  if (reinterpret_cast<std::uintptr_t>(pointer) % alignment != 0) {
    refuse(function, std::string(name) + " is not aligned to its elements");
  }
}

// The product of sizes that are not negative, or an error if it is more than `most`.
inline std::int64_t product(const char* function, std::initializer_list<std::int64_t> sizes,
                            std::int64_t most, const char* what) {
  std::int64_t all = 1;
  for (const std::int64_t size : sizes) {
    if (size == 0) return 0;
  }
  for (const std::int64_t size : sizes) {
    if (all > most / size) refuse(function, std::string("there are more ") + what);
    all *= size;
  }
  return all;
}

// Each check returns whether there is anything to do.

inline bool check(const TokenSort& s) {
  constexpr const char* kName = "token_sort";
  check_sizes(kName, {s.rows, s.size, s.tokens});
  if (s.tokens > kMost) refuse(kName, "ids have 32 bits, so there are at most 2^31 - 1 tokens");
  if (s.size > kMost) refuse(kName, "a row has at most 2^31 - 1 ids");
  if (product(kName, {s.rows, s.size}, std::int64_t{1} << 60, "ids than memory") == 0) return false;
  if (s.rows > kMost) refuse(kName, "there are more than 2^31 - 1 rows");
  check_pointer(kName, "ids", s.ids, 4);
  check_pointer(kName, "sorted", s.sorted, 4);
  if (s.ids == s.sorted && s.tokens > kTokenSortInPlace) {
    refuse(kName, "with more than " + std::to_string(kTokenSortInPlace) +
                      " tokens it needs another place for the result");
  }
  return true;
}

inline bool check(const TokenRows& r, const char* function) {
  check_sizes(function, {r.batch, r.tokens, r.kept, r.row_bytes});
  check_sizes(function,
              {r.all_batch_stride, r.all_token_stride, r.kept_batch_stride, r.kept_token_stride});
  if (r.tokens > kMost) refuse(function, "there are more than 2^31 - 1 tokens in a sequence");
  if (r.row_bytes > kMost) refuse(function, "a token has more than 2^31 - 1 bytes");
  if (product(function, {r.batch, r.kept}, kMost, "than 2^31 - 1 kept tokens") == 0) return false;
  if (r.row_bytes == 0) return false;
  if (r.tokens > 0) check_pointer(function, "all", r.all, 1);
  check_pointer(function, "kept_rows", r.kept_rows, 1);
  if (r.indices != nullptr) check_pointer(function, "indices", r.indices, 4);
  if (r.indices == nullptr && r.kept > r.tokens) {
    refuse(function, "the first " + std::to_string(r.kept) + " of " + std::to_string(r.tokens) +
                         " tokens are asked for");
  }
  return true;
}

inline bool check(const MaskGather& g) {
  constexpr const char* kName = "mask_gather";
  check_sizes(kName, {g.layers, g.batch, g.tokens, g.kept});
  if (g.element_size != 1 && g.element_size != 2 && g.element_size != 4 && g.element_size != 8) {
    refuse(kName,
           "an element has 1, 2, 4 or 8 bytes (it has " + std::to_string(g.element_size) + ")");
  }
  if (g.tokens > kMost) refuse(kName, "there are more than 2^31 - 1 tokens in a sequence");
  if (product(kName, {g.layers, g.batch, g.kept}, kMost, "than 2^31 - 1 rows") == 0) return false;
  if (g.tokens > 0)
    check_pointer(kName, "mask", g.mask, static_cast<std::uintptr_t>(g.element_size));
  check_pointer(kName, "indices", g.indices, 4);
  check_pointer(kName, "out", g.out, static_cast<std::uintptr_t>(g.element_size));
  return true;
}

// The widest word, of at most 16 bytes, that every row is made of and starts at.
inline int word_bytes(const TokenRows& r) {
  const auto all = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(r.all) % 16);
  const auto kept = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(r.kept_rows) % 16);
  const std::int64_t bits =
      all | kept | r.row_bytes | (r.batch > 1 ? r.all_batch_stride | r.kept_batch_stride : 0) |
      (r.tokens > 1 ? r.all_token_stride : 0) | (r.kept > 1 ? r.kept_token_stride : 0);
  int word = 16;
  while (bits % word != 0) word /= 2;
  return word;
}

}  // namespace ds::random_ltd

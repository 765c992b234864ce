#pragma once

// oneCCL's C interface, from 2022 on, as the loader finds it: nothing of oneCCL is needed to build,
// and nothing is loaded before it is asked for.

#include <cstddef>
#include <string>

namespace ds::oneccl {

// As in oneCCL's oneapi/ccl/v2/types.h: the numbers are its binary interface.
enum DataType {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kInt64 = 4,
  kHalf = 6,
  kFloat = 7,
  kDouble = 8,
  kBfloat16 = 9
};
enum Reduction { kSum = 0, kProduct = 1, kMax = 2, kMin = 3 };
struct UniqueId {
  char data[4096];
};
using Comm = void*;  // Of one rank.

// The functions that are used; each returns 0 or an error. With a null stream and memory of the
// CPU, what a collective was to do is done when it returns.
struct Library {
  int (*get_version)(int* version);
  int (*get_unique_id)(UniqueId* id);
  int (*comm_init_rank)(Comm* comm, std::size_t size, UniqueId id, int rank);
  int (*comm_destroy)(Comm comm);
  int (*all_reduce)(const void* in, void* out, std::size_t count, DataType type,
                    Reduction reduction, Comm comm, void* stream);
  int (*all_gather)(const void* in, void* out, std::size_t count, DataType type, Comm comm,
                    void* stream);
  int (*broadcast)(const void* in, void* out, std::size_t count, DataType type, int root, Comm comm,
                   void* stream);
  const char* (*get_error_string)(int result);

  std::string version() const;  // "2022.2"
};

struct Found {
  const Library* library;  // Null: `reason` says why.
  std::string reason;
};

// Looks once; afterwards, and from any thread, the same.
const Found& find();

}  // namespace ds::oneccl

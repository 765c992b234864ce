#pragma once

// Collectives between the ranks of one host, through POSIX shared memory. No torch.
//
// A rank is a process (or a thread) that opened the group. Every rank makes the same calls in the
// same order; calls that do not match are an error on every rank, and the group can be used on.
// A rank that dies, closes or does not come within the time limit is an error on every other rank:
// then the group is over, and what the call was to write is undefined.
//
// Failures are std::system_error: ECONNRESET (a rank died or closed), ETIMEDOUT, EPROTO (the calls
// do not match), and the system's own when the memory cannot be had. Arguments out of range are
// std::invalid_argument, before anything is sent.

#include <chrono>
#include <cstdint>
#include <string>

#include "ds_op.h"
#include "ds_types.h"

namespace ds {

DS_EXPORT std::int64_t shm_comm_type_size(CommType type);

struct ShmCommOptions {
  // What the ranks of this group know and no other group does, as shm_comm_new_name makes it; or
  // letters, digits, '.', '_' and '-', 1 to 100 of them.
  std::string name;
  int rank = 0;
  int size = 1;  // Ranks; at most 4,096.
  std::chrono::milliseconds timeout{
      std::chrono::minutes(30)};  // For the others to come, each time.
  std::int64_t slot_bytes =
      0;  // What a rank sends at once; 0: by the number of ranks. Rank 0's counts.
  CpuIsa isa = CpuIsa::automatic;
};

// 128 random bits. One rank makes it and tells the others, by whatever means they have.
DS_EXPORT std::string shm_comm_new_name();

// Where this process's shared memory is shared: ranks of which this is the same text can be a
// group. Of one that has none, equal to no other's.
DS_EXPORT std::string shm_comm_host();

// Of any thread, one call at a time (others wait). Not in a child of fork(): that is an error.
class ShmComm;

// Returns when all ranks have come. From then on the memory has no name: nothing is left behind,
// however the ranks end. It is readable and writable by this user only.
DS_EXPORT ShmComm* shm_comm_open(const ShmCommOptions& options);
// Other ranks may still be reading what this one sent; a call that they make after it fails.
DS_EXPORT void shm_comm_close(ShmComm* comm);

DS_EXPORT int shm_comm_rank(const ShmComm& comm);
DS_EXPORT int shm_comm_size(const ShmComm& comm);

// Each element of `data` becomes the reduction of that element of all ranks, in the order of ranks:
// ((x0 + x1) + x2) + …, f16 and bf16 in float and rounded once, to nearest even; integers wrap; a
// NaN anywhere gives NaN. The same bits on every rank and on every code path. `data` may be null if
// `count`, the number of elements, is 0.
DS_EXPORT void shm_comm_all_reduce(ShmComm& comm, void* data, std::int64_t count, CommType type,
                                   CommReduction reduction = CommReduction::sum);
// `out` has `bytes` bytes of each rank, in the order of ranks. `in` may be this rank's part of
// `out`, and otherwise does not overlap it.
DS_EXPORT void shm_comm_all_gather(ShmComm& comm, const void* in, void* out, std::int64_t bytes);
// The bytes of rank `root` to all.
DS_EXPORT void shm_comm_broadcast(ShmComm& comm, void* data, std::int64_t bytes, int root);
// Returns when all ranks have called it.
DS_EXPORT void shm_comm_barrier(ShmComm& comm);

}  // namespace ds

// Groups of 2 and 3 ranks, which are threads, on every code path. DS_SELF_TEST_MISSING where there
// is no shared memory to be had.
extern "C" DS_EXPORT int ds_self_test_shm_comm(const char* device, char* detail,
                                               unsigned long detail_size);

#pragma once

// Collectives between ranks: through oneCCL (libccl.so.2, looked for when first needed, in
// $CCL_ROOT/lib and where the loader looks) if it is there and works, and otherwise, for ranks of
// one host, through shared memory. No torch.
//
// Every rank makes the same calls in the same order. Through shared memory all that shm_comm.h
// promises holds; through oneCCL, what oneCCL does: neither the order of additions nor what happens
// when a rank dies is stated.
//
// Failures are std::system_error: those of shm_comm.h, EIO with oneCCL's own words, EREMOTE where
// ranks of several hosts would need a oneCCL that is not there. Arguments out of range are
// std::invalid_argument.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ds_op.h"
#include "ds_types.h"

namespace ds {

enum class CclBackend : std::uint8_t { oneccl = 1, shm = 2 };

inline constexpr std::size_t kCclIdBytes = 4608;

// What one rank of a new group makes and sends to the others. It says through what they meet: the
// environment's DS_CCL_BACKEND (oneccl or shm) decides, else oneCCL if that works here.
DS_EXPORT std::vector<std::uint8_t> ccl_comm_new_id();

// Why new groups go through shared memory ("libccl.so.2: cannot open shared object file…"), or
// empty if they do not.
DS_EXPORT std::string ccl_comm_why_not_oneccl();

struct CclCommOptions {
  std::vector<std::uint8_t> id;
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{std::chrono::minutes(30)};  // Through shared memory.
};

// Of any thread, one call at a time (others wait).
class CclComm;

// Returns when all ranks have come.
DS_EXPORT CclComm* ccl_comm_open(const CclCommOptions& options);
DS_EXPORT void ccl_comm_close(CclComm* comm);

DS_EXPORT int ccl_comm_rank(const CclComm& comm);
DS_EXPORT int ccl_comm_size(const CclComm& comm);
DS_EXPORT CclBackend ccl_comm_backend(const CclComm& comm);
// "oneCCL 2022.2" or "shared memory".
DS_EXPORT std::string ccl_comm_backend_name(const CclComm& comm);

// As in shm_comm.h. Sizes are elements and bytes; pointers may be null if they are 0.
DS_EXPORT void ccl_comm_all_reduce(CclComm& comm, void* data, std::int64_t count, CommType type,
                                   CommReduction reduction = CommReduction::sum);
DS_EXPORT void ccl_comm_all_gather(CclComm& comm, const void* in, void* out, std::int64_t bytes);
DS_EXPORT void ccl_comm_broadcast(CclComm& comm, void* data, std::int64_t bytes, int root);
DS_EXPORT void ccl_comm_barrier(CclComm& comm);

}  // namespace ds

// A group of 2 ranks, which are threads, through shared memory. Says which oneCCL there is, if any.
extern "C" DS_EXPORT int ds_self_test_ccl_comm(const char* device, char* detail,
                                               unsigned long detail_size);

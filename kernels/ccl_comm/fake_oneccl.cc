// A libccl.so.2 for the tests where oneCCL is not installed: the functions of its C interface that
// ccl_comm uses, over shm_comm. ccl_comm_test.cc asks the same of it as of the real one.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "oneccl.h"
#include "shm_comm.h"

using ds::oneccl::DataType;
using ds::oneccl::Reduction;
using ds::oneccl::UniqueId;

namespace {

constexpr int kInvalid = 4;

template <class Body>
int result_of(const Body& body) {
  try {
    return body();
  } catch (...) {
    return kInvalid;
  }
}

int width_of(DataType type) {
  switch (type) {
    case ds::oneccl::kInt8:
    case ds::oneccl::kUint8:
      return 1;
    case ds::oneccl::kHalf:
    case ds::oneccl::kBfloat16:
      return 2;
    case ds::oneccl::kInt32:
    case ds::oneccl::kFloat:
      return 4;
    default:
      return 8;
  }
}

ds::ShmComm& group(void* comm) {
  return *static_cast<ds::ShmComm*>(comm);
}

}  // namespace

#define FAKE extern "C" __attribute__((visibility("default")))

FAKE int onecclGetVersion(int* version) {
  *version = 20220200;
  return 0;
}

FAKE int onecclGetUniqueId(UniqueId* id) {
  if (std::getenv("DS_FAKE_ONECCL_HAS_NO_TRANSPORT") != nullptr) return 11;
  return result_of([&] {
    // Behind the first bytes, so that one that is cut off is noticed.
    std::memset(id->data, 0, sizeof id->data);
    ds::shm_comm_new_name().copy(id->data + sizeof id->data - 100, 99);
    return 0;
  });
}

FAKE int onecclCommInitRank(void** comm, std::size_t size, UniqueId id, int rank) {
  return result_of([&] {
    ds::ShmCommOptions options;
    options.name = id.data + sizeof id.data - 100;
    options.rank = rank;
    options.size = static_cast<int>(size);
    *comm = ds::shm_comm_open(options);
    return 0;
  });
}

FAKE int onecclCommDestroy(void* comm) {
  ds::shm_comm_close(&group(comm));
  return 0;
}

FAKE int onecclAllReduce(const void* in, void* out, std::size_t count, DataType type,
                         Reduction reduction, void* comm, void* stream) {
  if (in == nullptr || out == nullptr || count == 0 || stream != nullptr) return kInvalid;
  return result_of([&] {
    if (in != out) std::memcpy(out, in, count * static_cast<std::size_t>(width_of(type)));
    ds::CommType own;
    switch (type) {
      case ds::oneccl::kInt8:
        own = ds::CommType::i8;
        break;
      case ds::oneccl::kUint8:
        own = ds::CommType::u8;
        break;
      case ds::oneccl::kInt32:
        own = ds::CommType::i32;
        break;
      case ds::oneccl::kInt64:
        own = ds::CommType::i64;
        break;
      case ds::oneccl::kHalf:
        own = ds::CommType::f16;
        break;
      case ds::oneccl::kBfloat16:
        own = ds::CommType::bf16;
        break;
      case ds::oneccl::kFloat:
        own = ds::CommType::f32;
        break;
      case ds::oneccl::kDouble:
        own = ds::CommType::f64;
        break;
      default:
        return kInvalid;
    }
    constexpr ds::CommReduction kOwn[] = {ds::CommReduction::sum, ds::CommReduction::product,
                                          ds::CommReduction::max, ds::CommReduction::min};
    ds::shm_comm_all_reduce(group(comm), out, static_cast<std::int64_t>(count), own,
                            kOwn[reduction]);
    return 0;
  });
}

FAKE int onecclAllGather(const void* in, void* out, std::size_t count, DataType type, void* comm,
                         void* stream) {
  if (in == nullptr || out == nullptr || count == 0 || stream != nullptr) return kInvalid;
  return result_of([&] {
    ds::shm_comm_all_gather(group(comm), in, out,
                            static_cast<std::int64_t>(count) * width_of(type));
    return 0;
  });
}

FAKE int onecclBroadcast(const void* in, void* out, std::size_t count, DataType type, int root,
                         void* comm, void* stream) {
  if (in == nullptr || out != in || count == 0 || stream != nullptr) return kInvalid;
  return result_of([&] {
    ds::shm_comm_broadcast(group(comm), out, static_cast<std::int64_t>(count) * width_of(type),
                           root);
    return 0;
  });
}

FAKE const char* onecclGetErrorString(int result) {
  return result == 11 ? "no transport" : "invalid argument";
}

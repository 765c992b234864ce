#include "shm.h"

// Behind the line above: it includes shm_comm.h, too.
#include "../shm_comm/shm_problem.h"
#include "ccl_comm.h"
#include "oneccl.h"
#include "self_test_frame.h"

#include <cerrno>
#include <cstring>
#include <exception>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace ds {
namespace {

std::string wrong_on_rank(const std::string& name, int rank) {
  ShmCommOptions options;
  options.name = name;
  options.rank = rank;
  options.size = 2;
  options.timeout = std::chrono::seconds(20);
  struct Closer {
    ShmComm* comm;
    ~Closer() { shm_comm_close(comm); }
  };
  const Closer closer{shm_comm_open(options)};
  for (const std::int64_t count : {1, 70'000}) {
    std::string wrong = shm_wrong_element<float>(*closer.comm, count, CommType::f32, 1);
    if (wrong.empty()) wrong = shm_wrong_element<bf16>(*closer.comm, count, CommType::bf16, 2);
    if (!wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace
}  // namespace ds

int ds_self_test_ccl_comm(const char* device, char* detail, unsigned long detail_size) {
  return ds::self_test_on_cpu(device, detail, detail_size, [](const auto& say) {
    try {
      const std::string name = ds::shm_comm_new_name();
      std::string wrong[2];
      std::exception_ptr thrown;
      std::thread other([&] {
        try {
          wrong[1] = ds::wrong_on_rank(name, 1);
        } catch (...) {
          thrown = std::current_exception();
        }
      });
      try {
        wrong[0] = ds::wrong_on_rank(name, 0);
      } catch (...) {
        other.join();
        throw;
      }
      other.join();
      if (thrown != nullptr) std::rethrow_exception(thrown);
      for (const std::string& text : wrong) {
        if (text.empty()) continue;
        say("through shared memory: " + text);
        return DS_SELF_TEST_WRONG;
      }
      const ds::oneccl::Found& found = ds::oneccl::find();
      say(found.library != nullptr
              ? "oneCCL " + found.library->version() + " is there; shared memory is right"
              : "2 ranks through shared memory, every bit the same; without oneCCL: " +
                    found.reason);
      return DS_SELF_TEST_OK;
    } catch (const std::system_error& error) {
      say(error.what());
      // A machine without shared memory is not a wrong op.
      const int code = error.code().value();
      for (const int none : {EACCES, EPERM, ENOENT, ENOSPC, EROFS, ENOSYS, ENOMEM, EMFILE}) {
        if (code == none) return DS_SELF_TEST_MISSING;
      }
      return DS_SELF_TEST_WRONG;
    }
  });
}

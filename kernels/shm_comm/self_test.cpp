#include <cerrno>
#include <exception>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "self_test.h"
#include "shm_comm.h"
#include "shm_problem.h"

namespace ds {
namespace {

std::string wrong_on_rank(const ShmCommOptions& options) {
  struct Closer {
    ShmComm* comm;
    ~Closer() { shm_comm_close(comm); }
  };
  const Closer closer{shm_comm_open(options)};
  ShmComm& comm = *closer.comm;
  // Of one line, of one phase, of several chunks.
  for (const std::int64_t count : {1, 67, 2500}) {
    std::string wrong = shm_wrong_element<float>(comm, count, CommType::f32, 1);
    if (wrong.empty()) wrong = shm_wrong_element<f16>(comm, count, CommType::f16, 2);
    if (wrong.empty()) wrong = shm_wrong_element<bf16>(comm, count, CommType::bf16, 3);
    if (!wrong.empty()) return "all_reduce: " + wrong;
  }
  std::vector<int> all(static_cast<std::size_t>(options.size), -1);
  shm_comm_all_gather(comm, &options.rank, all.data(), sizeof(int));
  for (int r = 0; r < options.size; ++r) {
    if (all[static_cast<std::size_t>(r)] != r) return "all_gather: part " + std::to_string(r);
  }
  int said = options.rank + 100;
  shm_comm_broadcast(comm, &said, sizeof said, options.size - 1);
  if (said != options.size + 99) return "broadcast: got " + std::to_string(said);
  shm_comm_barrier(comm);
  return "";
}

// What goes wrong in a thread, in the thread that asked for it.
struct Outcome {
  std::string wrong;
  std::exception_ptr thrown;
};

std::string wrong_in_group(int size, CpuIsa isa) {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(size));
  ShmCommOptions options;
  options.name = shm_comm_new_name();
  options.size = size;
  options.timeout = std::chrono::seconds(20);
  options.slot_bytes = 4096;
  options.isa = isa;
  std::vector<std::thread> threads;
  const auto run = [&outcomes, &options](int rank) {
    Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    ShmCommOptions own = options;
    own.rank = rank;
    try {
      outcome.wrong = wrong_on_rank(own);
    } catch (...) {
      outcome.thrown = std::current_exception();
    }
  };
  for (int rank = 1; rank < size; ++rank) threads.emplace_back(run, rank);
  run(0);
  for (std::thread& thread : threads) thread.join();
  for (const Outcome& outcome : outcomes) {
    if (outcome.thrown != nullptr) std::rethrow_exception(outcome.thrown);
    if (!outcome.wrong.empty()) return outcome.wrong;
  }
  return "";
}

}  // namespace
}  // namespace ds

int ds_self_test_shm_comm(const char* device, char* detail, unsigned long detail_size) {
  return ds::self_test_on_cpu(device, detail, detail_size, [](const auto& say) {
    try {
      std::string paths;
      for (const ds::CpuIsa isa : ds::runnable_isas()) {
        for (const int size : {2, 3}) {
          if (const std::string wrong = ds::wrong_in_group(size, isa); !wrong.empty()) {
            say(std::string(ds::isa_name(isa)) + ": " + wrong);
            return DS_SELF_TEST_WRONG;
          }
        }
        paths += (paths.empty() ? "" : "+") + std::string(ds::isa_name(isa));
      }
      say(paths + ", 2 and 3 ranks, every bit the same");
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

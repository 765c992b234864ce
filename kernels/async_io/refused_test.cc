#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cstddef>

#include "io_test.h"
#include "kernel_release.h"

namespace ds {
namespace {

// From here on the kernel answers these system calls with `code`, as a container's filter does.
bool refuse(const std::vector<long>& calls, int code) {
  std::vector<sock_filter> program;
  program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
  for (long call : calls) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(call), 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(code)));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog all{static_cast<unsigned short>(program.size()), program.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all) == 0;
}

// Runs in a process of its own, which a filter never leaves.
template <class Test>
bool holds_in_child(const Test& test) {
  return in_child([&] { return test() ? 0 : 1; }) == 0;
}

// Empty if the kernel grants it; else the kernel's reason.
std::string why_not(AsyncIoEngine engine) {
  AsyncIoOptions options;
  options.engine = engine;
  return thrown_by([&] { const AsyncIoPtr opened(async_io_open(options)); }).text;
}

// For a test that needs the engine; nothing that is not there can be refused or fallen back to.
#define DS_SKIP_WITHOUT(engine) \
  if (const std::string reason = why_not(engine); !reason.empty()) GTEST_SKIP() << reason

bool works(AsyncIo& io, const std::string& path) {
  const Bytes source = random_bytes(100'001, 1);
  async_io_submit(io, writing(path, source.data(), source.size(), 7));
  async_io_wait(io);
  Bytes got(source.size());
  async_io_submit(io, reading(path, got.data(), got.size(), 7));
  async_io_wait(io);
  return got == source;
}

// `engine` is what is used where `calls` are refused, and the reasons name all that were tried.
bool falls_back_to(AsyncIoEngine engine, const std::vector<long>& calls, int code,
                   const std::vector<std::string>& reasons, const std::string& path) {
  return holds_in_child([&] {
    if (!refuse(calls, code)) return false;
    const AsyncIoPtr io(async_io_open({}));
    const std::string reason = async_io_engine_reason(*io);
    for (const std::string& one : reasons) {
      if (reason.find(one) == std::string::npos) {
        std::fprintf(stderr, "the reason is \"%s\"\n", reason.c_str());
        return false;
      }
    }
    return async_io_engine(*io) == engine && works(*io, path);
  });
}

TEST(AsyncIoRefused, Io_uring_gives_libaio_with_the_reason) {
  DS_SKIP_WITHOUT(AsyncIoEngine::libaio);
  const Folder disk;
  EXPECT_TRUE(falls_back_to(AsyncIoEngine::libaio, {SYS_io_uring_setup}, EPERM,
                            {"io_uring: Operation not permitted"}, disk.file("a")));
  EXPECT_TRUE(falls_back_to(AsyncIoEngine::libaio, {SYS_io_uring_setup}, ENOSYS,
                            {"io_uring: Function not implemented"}, disk.file("b")));
}

TEST(AsyncIoRefused, Io_uring_and_libaio_give_plain_calls_with_both_reasons) {
  const Folder disk;
  EXPECT_TRUE(falls_back_to(
      AsyncIoEngine::posix, {SYS_io_uring_setup, SYS_io_setup}, EPERM,
      {"io_uring: Operation not permitted", "libaio: Operation not permitted"}, disk.file("c")));
}

TEST(AsyncIoRefused, What_was_named_is_an_error_and_not_replaced) {
  EXPECT_TRUE(holds_in_child([] {
    if (!refuse({SYS_io_uring_setup}, EPERM)) return false;
    AsyncIoOptions options;
    options.engine = AsyncIoEngine::io_uring;
    options.threads = 3;
    const Thrown thrown = thrown_by([&] { async_io_open(options); });
    return thrown.code == EPERM && thrown.text == "io_uring: Operation not permitted" &&
           are_worker_threads(0);
  }));
}

TEST(AsyncIoRefused, Calls_that_only_save_time_are_done_without) {
  DS_SKIP_WITHOUT(AsyncIoEngine::io_uring);
  const Folder disk;
  EXPECT_TRUE(falls_back_to(AsyncIoEngine::io_uring, {SYS_fallocate, SYS_statx, SYS_mlock}, EPERM,
                            {}, disk.file("a")));
}

TEST(AsyncIoRefused, Self_test_names_what_the_kernel_refuses_and_passes_with_the_rest) {
  DS_SKIP_WITHOUT(AsyncIoEngine::libaio);
  EXPECT_TRUE(holds_in_child([] {
    if (!refuse({SYS_io_uring_setup}, EPERM)) return false;
    char detail[300] = "";
    const int result = ds_self_test_async_io("cpu", detail, sizeof detail);
    return result == DS_SELF_TEST_OK && std::strstr(detail, "libaio+posix") != nullptr &&
           std::strstr(detail, "io_uring: Operation not permitted") != nullptr;
  }));
}

TEST(AsyncIoKernel, Release_is_compared_by_its_numbers) {
  for (const char* release : {"6.4.0", "6.4", "6.10.3-rc1", "6.18.44-cloud", "7.0", "10"}) {
    EXPECT_TRUE(is_kernel_at_least(release, 6, 4)) << release;
  }
  for (const char* release : {"6.1.0-28-amd64", "6.3.9", "5.15.0", "6", "", "custom"}) {
    EXPECT_FALSE(is_kernel_at_least(release, 6, 4)) << release;
  }
}

TEST(AsyncIoRefused, Self_test_without_any_engine_is_not_ok_but_says_what_is_missing) {
  EXPECT_TRUE(holds_in_child([] {
    // No engine works without its thread.
    if (!refuse({SYS_clone, SYS_clone3}, EAGAIN)) return false;
    char detail[300] = "";
    const int result = ds_self_test_async_io("cpu", detail, sizeof detail);
    std::fprintf(stderr, "%s\n", detail);
    return result == DS_SELF_TEST_MISSING && std::strstr(detail, "no engine") != nullptr &&
           std::strstr(detail, "Resource temporarily unavailable") != nullptr;
  }));
}

}  // namespace
}  // namespace ds

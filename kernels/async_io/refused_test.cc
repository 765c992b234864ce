#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cstddef>

#include "io_test.h"

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

// Runs in a process of its own, which a filter never leaves. True if `test` is.
template <class Test>
bool in_child(const Test& test) {
  const pid_t child = fork();
  if (child == 0) {
    try {
      _exit(test() ? 0 : 1);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      _exit(2);
    }
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && status == 0;
}

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
  return in_child([&] {
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

TEST(AsyncIoRefused, Io_uring_gives_libaio_and_both_refused_give_plain_calls_with_the_reasons) {
  const Folder disk;
  EXPECT_TRUE(falls_back_to(AsyncIoEngine::libaio, {SYS_io_uring_setup}, EPERM,
                            {"io_uring: Operation not permitted"}, disk.file("a")));
  EXPECT_TRUE(falls_back_to(AsyncIoEngine::libaio, {SYS_io_uring_setup}, ENOSYS,
                            {"io_uring: Function not implemented"}, disk.file("b")));
  EXPECT_TRUE(falls_back_to(
      AsyncIoEngine::posix, {SYS_io_uring_setup, SYS_io_setup}, EPERM,
      {"io_uring: Operation not permitted", "libaio: Operation not permitted"}, disk.file("c")));
}

TEST(AsyncIoRefused, What_was_named_is_an_error_and_not_replaced) {
  EXPECT_TRUE(in_child([] {
    if (!refuse({SYS_io_uring_setup}, EPERM)) return false;
    AsyncIoOptions options;
    options.engine = AsyncIoEngine::io_uring;
    options.threads = 3;
    const Thrown thrown = thrown_by([&] { async_io_open(options); });
    return thrown.code == EPERM && thrown.text == "io_uring: Operation not permitted" &&
           threads_of_this_process() == 1;
  }));
}

TEST(AsyncIoRefused, Calls_that_only_save_time_are_done_without) {
  const Folder disk;
  EXPECT_TRUE(falls_back_to(AsyncIoEngine::io_uring, {SYS_fallocate, SYS_statx, SYS_mlock}, EPERM,
                            {}, disk.file("a")));
}

TEST(AsyncIoRefused, Self_test_names_what_the_kernel_refuses_and_passes_with_the_rest) {
  EXPECT_TRUE(in_child([] {
    if (!refuse({SYS_io_uring_setup}, EPERM)) return false;
    char detail[300] = "";
    const int result = ds_self_test_async_io("cpu", detail, sizeof detail);
    return result == DS_SELF_TEST_OK && std::strstr(detail, "libaio+posix") != nullptr &&
           std::strstr(detail, "io_uring: Operation not permitted") != nullptr;
  }));
}

}  // namespace
}  // namespace ds

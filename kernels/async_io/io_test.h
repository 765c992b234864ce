#pragma once

// What the tests of async_io share: folders on a file system with and one without O_DIRECT, plain
// reads to compare with, and an AsyncIo for each engine that works here.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "async_io.h"

namespace ds {

using Bytes = std::vector<unsigned char>;

inline Bytes random_bytes(std::size_t size, unsigned seed) {
  Bytes bytes(size);
  std::minstd_rand random(seed + 1);
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random() >> 9);
  return bytes;
}

class Folder {
 public:
  // The build folder is on a disk; /dev/shm is a tmpfs.
  explicit Folder(std::string parent = std::filesystem::current_path()) {
    path_ = std::move(parent) + "/ds-aio-test-XXXXXX";
    if (mkdtemp(path_.data()) == nullptr) {
      throw std::system_error(errno, std::generic_category(), "mkdtemp " + path_);
    }
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string file(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline Bytes plain_read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(in), {});
}

inline void plain_write(const std::string& path, const Bytes& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(out.flush());
}

inline AsyncIoRequest reading(const std::string& path, void* data, std::size_t size,
                              std::int64_t offset = 0) {
  AsyncIoRequest request;
  request.path = path;
  request.data = data;
  request.size = static_cast<std::int64_t>(size);
  request.offset = offset;
  return request;
}

inline AsyncIoRequest writing(const std::string& path, const void* data, std::size_t size,
                              std::int64_t offset = 0) {
  AsyncIoRequest request = reading(path, const_cast<void*>(data), size, offset);
  request.write = true;
  return request;
}

struct Thrown {
  int code = 0;
  std::string text;
};

template <class Function>
Thrown thrown_by(const Function& function) {
  try {
    function();
  } catch (const std::system_error& error) {
    return {error.code().value(), error.what()};
  }
  return {};
}

inline std::size_t entries_of(const char* folder) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

// Worker threads, of every AsyncIo.
inline std::size_t worker_threads() {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream in(entry.path() / "comm");
    std::string name;
    if (std::getline(in, name) && name == "ds-async-io") ++count;
  }
  return count;
}

// Asks again until it holds, for as long as no machine that still works would need. For what the
// kernel, or another thread, does a moment later.
template <class Condition>
bool eventually(const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// A thread that was joined stays in the list for a moment.
inline bool are_worker_threads(std::size_t expected) {
  return eventually([&] { return worker_threads() == expected; });
}

// Runs in a process of its own and returns what `body` does, which is its exit status: 255 if it
// threw, 128 and the signal if it was killed. Never comes back from the child, where the program
// would go on with the tests and print a second summary.
template <class Body>
int in_child(const Body& body) {
  const pid_t child = fork();
  if (child < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (child == 0) {
    int code = 255;
    try {
      code = body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
    } catch (...) {
      std::fprintf(stderr, "something was thrown\n");
    }
    _exit(code);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) throw std::system_error(errno, std::generic_category(), "waitpid");
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// A test for each engine; one that the kernel refuses is skipped with the kernel's reason.
class EachEngine : public testing::TestWithParam<AsyncIoEngine> {
 protected:
  void SetUp() override {
    try {
      open();
    } catch (const std::system_error& error) {
      GTEST_SKIP() << error.what();
    }
  }

  AsyncIoPtr open(std::int64_t block_size = 4096, int queue_depth = 8, int threads = 1,
                  bool direct = true) {
    AsyncIoOptions options;
    options.block_size = block_size;
    options.queue_depth = queue_depth;
    options.threads = threads;
    options.engine = GetParam();
    options.direct = direct;
    return AsyncIoPtr(async_io_open(options));
  }
};

#define DS_FOR_EACH_ENGINE(suite)                                                            \
  INSTANTIATE_TEST_SUITE_P(                                                                  \
      Engines, suite,                                                                        \
      testing::Values(AsyncIoEngine::io_uring, AsyncIoEngine::libaio, AsyncIoEngine::posix), \
      [](const auto& engine) { return async_io_engine_name(engine.param); })

}  // namespace ds

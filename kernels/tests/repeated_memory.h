#pragma once

// More memory than the machine has, for tests of sizes beyond 32 bits: one small window of real
// memory mapped again and again, and behind it a tail of its own. An update of the whole range by
// one thread updates each element of the window once per repetition, and each of the tail once: a
// size or an index cut to 32 bits gives other counts, or misses the tail.

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <string>

class RepeatedMemory {
 public:
  // The tail gets at least `tail` bytes. `window` is a multiple of the page size.
  RepeatedMemory(std::size_t window, std::size_t repetitions, std::size_t tail)
      : window_(window), repetitions_(repetitions) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    total_ = window * repetitions + (tail + page - 1) / page * page;
    base_ = static_cast<char*>(mmap(nullptr, total_, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (base_ == MAP_FAILED) throw failure("mmap");
    const int fd = memfd_create("window", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(window)) != 0) throw failure("memfd_create");
    for (std::size_t i = 0; i < repetitions; ++i) {
      if (mmap(base_ + i * window, window, PROT_READ | PROT_WRITE,
               MAP_SHARED | MAP_FIXED | MAP_POPULATE, fd, 0) == MAP_FAILED) {
        throw failure("mmap of the window");
      }
    }
    close(fd);
  }
  ~RepeatedMemory() { munmap(base_, total_); }
  RepeatedMemory(const RepeatedMemory&) = delete;
  RepeatedMemory& operator=(const RepeatedMemory&) = delete;

  void* data() { return base_; }
  template <class T>
  T* window() {
    return reinterpret_cast<T*>(base_);
  }
  template <class T>
  T* tail() {
    return reinterpret_cast<T*>(base_ + window_ * repetitions_);
  }

 private:
  static std::runtime_error failure(const char* what) {
    return std::runtime_error(std::string(what) + ": " + std::strerror(errno));
  }

  std::size_t window_, repetitions_, total_ = 0;
  char* base_ = nullptr;
};

#pragma once

// What belongs to a process, so that a child of fork() can be told from it without a system call.

#include <pthread.h>

#include <atomic>

namespace ds {

inline std::atomic<unsigned> fork_count{0};

// Goes up in a child of fork(). Counts from its first call on: whoever wants to know later whether
// it is in a child asks when it begins.
inline unsigned fork_generation() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { fork_count.fetch_add(1, std::memory_order_relaxed); });
  (void)registered;
  return fork_count.load(std::memory_order_relaxed);
}

}  // namespace ds

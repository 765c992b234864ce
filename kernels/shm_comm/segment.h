#pragma once

// The shared memory of a group, how its ranks find it, and how they wait for each other in it.
//
// One word, `arrived`, counts the arrivals of all ranks at all phases; phase p is over when it has
// reached p·size. The last to arrive knows that from its own addition; the others look at the word
// for a while and then sleep on it (futex), and only the last wakes them. A sleeper looks from time
// to time whether those that are missing still run.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "process.h"

namespace ds {

// What a rank is about to do. All ranks must be about to do the same.
struct ShmCall {
  std::uint8_t kind = 0;
  std::uint8_t type = 0;
  std::uint8_t reduction = 0;
  std::uint8_t crowded = 0;  // Not of the call: the rank had to sleep again and again in the last.
  std::int32_t root = 0;
  std::int64_t count = 0;
};

// See shm_comm_host.
std::string shm_host();

class ShmSegment {
 public:
  struct Options {
    std::string name;
    int rank, size;
    std::chrono::milliseconds timeout;
    std::int64_t slot_bytes;  // Rank 0's counts.
  };

  // Comes back when all ranks are there.
  explicit ShmSegment(Options options);
  ~ShmSegment();
  ShmSegment(const ShmSegment&) = delete;
  ShmSegment& operator=(const ShmSegment&) = delete;

  int rank() const { return options_.rank; }
  int size() const { return options_.size; }
  std::int64_t slot_bytes() const { return slot_bytes_; }
  // How often this rank has slept until another came.
  std::int64_t sleeps() const { return sleeps_; }

  // Of the two buffers of a rank, the one of that number: its call, and slot_bytes() bytes.
  ShmCall& call(int rank, unsigned buffer) const {
    return *reinterpret_cast<ShmCall*>(buffer_at(rank, buffer));
  }
  // Up to kInline bytes lie in the cache line of the call.
  static constexpr std::int64_t kInline = 48;
  char* inline_slot(int rank, unsigned buffer) const {
    return buffer_at(rank, buffer) + sizeof(ShmCall);
  }
  char* slot(int rank, unsigned buffer) const { return buffer_at(rank, buffer) + kCallBytes; }

  // Throws if this rank cannot take part any more; `what` is the call, for the message.
  void check_usable(const char* what) const;

  // What this rank wrote before is there for all ranks after it.
  void arrive_and_wait(const char* what);

  // Throws std::system_error with a text that says which group and rank this is.
  [[noreturn]] void refuse(const char* what, int code, const std::string& why) const;

 private:
  static constexpr std::int64_t kCallBytes = 64;
  struct Member;
  struct Header;

  void create();
  void attach(std::chrono::steady_clock::time_point deadline);
  void map(int fd, std::size_t bytes);
  void join();
  void unlink_if_ours() const;
  Member& member(int rank) const;
  char* buffer_at(int rank, unsigned buffer) const {
    return slots_ +
           (static_cast<std::int64_t>(rank) * 2 + (buffer & 1)) * (kCallBytes + slot_bytes_);
  }

  bool reached(std::uint32_t target) const;
  void sleep_until(std::uint32_t target, const char* what);
  int missing_rank(int from) const;
  // The rank that keeps the others waiting and cannot come any more, or -1. Those that closed are
  // seen at once; a thorough look asks the system for those that ended.
  int lost_rank(bool thorough) const;
  void fail(std::uint32_t kind, int rank);
  [[noreturn]] void throw_failure(const char* what) const;

  Options options_;
  std::string path_;
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
  Header* header_ = nullptr;
  char* slots_ = nullptr;
  std::int64_t slot_bytes_ = 0;
  std::uint32_t phase_ = 0;
  std::int64_t sleeps_ = 0;
  int spins_ = 0;
  int company_ = 0;  // For so many more waits: other work has the cores.
  unsigned generation_;
};

}  // namespace ds

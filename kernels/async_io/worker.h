#pragma once

// What is to be done (Job, JobQueue) and who does it (Worker: one thread, one backend).
//
// A job is cut into blocks as there is room for them: a worker takes the first job of the queue,
// starts some of its blocks, and puts it back if there are more, so that the queue of the device is
// refilled after every completion and several workers share one long job.

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "async_io.h"
#include "backend.h"
#include "cut.h"
#include "file.h"

namespace ds {

struct Job {
  AsyncIoRequest request;
  std::shared_ptr<File> file;  // While it is worked on. From the start for a descriptor.
  CutRules rules{};
  std::int64_t position =
      0;  // In the file, of what is not started yet; whoever took the job moves it.
  std::uint64_t asked = 0;  // FileCache::ask() when it was submitted.
  bool prepared = false;
  bool retried = false;  // Once more after descriptors were made free.

  // Blocks in flight, and one while there are more to start.
  std::atomic<std::int64_t> left{1};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  std::optional<std::system_error> failure;  // The first.

  // AsyncIo's.
  bool waited_for = false;  // By async_io_run, not by async_io_wait.
  bool done = false;

  void fail(const std::system_error& error);
  std::int64_t end() const { return request.offset + request.size; }
};

class JobQueue {
 public:
  void push_back(std::shared_ptr<Job> job);
  void push_front(std::shared_ptr<Job> job);
  std::shared_ptr<Job> pop();  // Null if there is none.
  // Until there is a job (true), a second has passed (true) or stop() was called and all is done.
  bool wait();
  void stop();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> jobs_;
  bool stopped_ = false;
};

// Told of every job that has ended, by the thread that did the last of it.
class JobListener {
 public:
  virtual ~JobListener() = default;
  virtual void ended(const std::shared_ptr<Job>& job) = 0;
};

class Worker {
 public:
  // All of them outlive it.
  Worker(std::unique_ptr<Backend> backend, int depth, const AsyncIoOptions& options,
         FileCache& files, JobListener& listener);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Returns when the queue is empty and nothing is in flight.
  void work(JobQueue& queue);
  void tidy() { backend_->tidy(); }

 private:
  // A block in flight.
  struct Slot : Io {
    Cut cut{};
    std::shared_ptr<Job> job;
    std::int64_t done = 0;  // Bytes of [io_begin, io_end).
    int attempts = 0;       // In a row that brought nothing.
    char* bounce = nullptr;
  };

  void refill(JobQueue& queue);
  void prepare(Job& job);
  bool start_blocks(const std::shared_ptr<Job>& job);  // True if the job has more.
  void begin(Slot& slot);
  void send(Slot& slot);  // What is not done yet of it.
  void flush();
  void ended(Slot& slot, std::int64_t result);
  void give_up(Slot& slot, int code, const std::string& why = "");
  void finish(Slot& slot);
  void release(const std::shared_ptr<Job>& job);
  std::size_t room() const { return static_cast<std::size_t>(depth_) - busy_; }
  char* take_bounce();

  std::unique_ptr<Backend> backend_;
  const int depth_;
  const AsyncIoOptions& options_;
  FileCache& files_;
  JobListener& listener_;
  const std::int64_t bounce_size_;

  std::vector<std::unique_ptr<Slot>> slots_;  // Made when they are first needed.
  std::vector<Slot*> free_;
  std::size_t busy_ = 0;        // Slots with a block.
  std::deque<Slot*> deferred_;  // Of them, those that wait for memory of our own.
  std::vector<char*> free_bounce_;
  std::size_t bounce_count_ = 0;
  std::vector<Completion> completions_;
  int unsent_ = 0;  // Started since the last flush.
};

}  // namespace ds

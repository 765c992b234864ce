#include "worker.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace ds {
namespace {

constexpr std::int64_t kBounceSize = std::int64_t{1} << 20;
constexpr std::size_t kBounces = 16;
constexpr std::size_t kBounceAlign = std::size_t{64} << 10;
// EAGAIN from a file is the kernel being short of something.
constexpr int kAttempts = 10'000;
// So many operations are handed to the kernel at once, although more may follow: while the rest is
// prepared the device works on them.
constexpr int kSentAtOnce = 4;
// A file that grows by less is not worth a system call to reserve room for it.
constexpr std::int64_t kReserve = std::int64_t{1} << 20;

std::string what_failed(const AsyncIoRequest& request, std::int64_t begin, std::int64_t end,
                        const std::string& name) {
  return std::string("cannot ") + (request.write ? "write " : "read ") +
         std::to_string(end - begin) + " bytes at offset " + std::to_string(begin) + " of " + name;
}

std::system_error too_short(const Job& job, std::int64_t begin, std::int64_t end,
                            std::int64_t size) {
  return io_error(ENODATA, what_failed(job.request, begin, end, job.file->name()) +
                               ": the file ends at byte " + std::to_string(size));
}

}  // namespace

void Job::fail(const std::system_error& error) {
  const std::lock_guard lock(mutex);
  if (!failure) failure = error;
  failed.store(true, std::memory_order_release);
}

void JobQueue::push_back(std::shared_ptr<Job> job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_one();
}

void JobQueue::push_front(std::shared_ptr<Job> job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_front(std::move(job));
  }
  changed_.notify_one();
}

std::shared_ptr<Job> JobQueue::pop() {
  const std::lock_guard lock(mutex_);
  if (jobs_.empty()) return nullptr;
  std::shared_ptr<Job> job = std::move(jobs_.front());
  jobs_.pop_front();
  return job;
}

bool JobQueue::wait() {
  std::unique_lock lock(mutex_);
  // system_clock, because the wait on steady_clock is one that the thread sanitizer of this
  // generation of compilers does not see; a second more or less makes no difference.
  changed_.wait_until(lock, std::chrono::system_clock::now() + std::chrono::seconds(1),
                      [&] { return stopped_ || !jobs_.empty(); });
  return !stopped_ || !jobs_.empty();
}

void JobQueue::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
}

Worker::Worker(std::unique_ptr<Backend> backend, int depth, const AsyncIoOptions& options,
               FileCache& files, JobListener& listener)
    : backend_(std::move(backend)),
      depth_(depth),
      options_(options),
      files_(files),
      listener_(listener),
      bounce_size_(std::min(kBounceSize, options.block_size)) {}

Worker::~Worker() {
  for (char* memory : free_bounce_) std::free(memory);
}

void Worker::work(JobQueue& queue) {
  for (;;) {
    refill(queue);
    if (busy_ == 0) return;
    completions_.clear();
    unsent_ = 0;
    backend_->wait_some(completions_);
    for (const Completion& one : completions_) {
      ended(*static_cast<Slot*>(one.io), one.result);
    }
  }
}

void Worker::refill(JobQueue& queue) {
  while (!deferred_.empty()) {
    char* const memory = take_bounce();
    if (memory == nullptr) break;
    Slot& slot = *deferred_.front();
    deferred_.pop_front();
    slot.bounce = memory;
    begin(slot);
  }
  while (room() > 0) {
    std::shared_ptr<Job> job = queue.pop();
    if (job == nullptr) return;
    bool more = false;
    try {
      if (!job->prepared) prepare(*job);
      more = start_blocks(job);
    } catch (const std::system_error& error) {
      const int code = error.code().value();
      if (code == EMFILE || code == ENFILE) {
        files_.close_idle(std::chrono::milliseconds(0));
        if (busy_ > 0) {  // When those have ended, there will be descriptors.
          queue.push_front(std::move(job));
          return;
        }
        if (!std::exchange(job->retried, true)) {  // There may be some now.
          queue.push_front(std::move(job));
          continue;
        }
      }
      job->fail(error);
    } catch (const std::bad_alloc&) {
      job->fail(io_error(ENOMEM, "no memory to keep count of operations"));
    }
    if (more) {
      queue.push_front(std::move(job));  // Others may help.
    } else {
      release(job);
    }
    // What is started may be done in this very call (a file system without asynchronous
    // operations); in the meantime the others see what is in the queue.
    if (options_.single_submit || options_.threads > 1) flush();
  }
}

// Opens the file and settles how it is cut.
void Worker::prepare(Job& job) {
  const AsyncIoRequest& request = job.request;
  std::int64_t size = 0;
  if (job.file != nullptr) {
    size = job.file->size();
  } else {
    FoundFile found = files_.get(request.path, request.write, options_.direct, job.asked);
    job.file = std::move(found.file);
    size = found.size;
  }
  File& file = *job.file;
  if (!request.write && job.end() > size) throw too_short(job, request.offset, job.end(), size);
  const std::int64_t align = file.align();
  const auto round_up = [&](std::int64_t bytes) { return (bytes + align - 1) / align * align; };
  job.rules = {request.write, file.direct(), round_up(options_.block_size),
               bounce_size_,  align,         file.memory_align()};
  // Also for a device whose blocks are larger than our memory for them.
  if (bounce_size_ % align != 0 || static_cast<std::size_t>(align) > kBounceAlign ||
      !is_worth_direct(job.rules, request.offset, job.end())) {
    job.rules.direct = false;
  }
  job.position = request.offset;
  const std::int64_t from = std::max(size, request.offset);
  if (request.write && job.rules.direct && job.end() - from >= kReserve) {
    file.reserve(from, job.end());
  }
  job.prepared = true;
}

bool Worker::start_blocks(const std::shared_ptr<Job>& job) {
  const AsyncIoRequest& request = job->request;
  const std::size_t share = options_.single_submit ? 1 : options_.threads > 1 ? 8 : room();
  for (std::size_t i = std::min(share, room()); i > 0; --i) {
    // What is left of a job that failed is not even tried.
    if (job->position >= job->end() || job->failed.load(std::memory_order_acquire)) return false;
    if (free_.empty()) {
      slots_.push_back(std::make_unique<Slot>());
      free_.push_back(slots_.back().get());
    }
    const char* const memory =
        static_cast<const char*>(request.data) + (job->position - request.offset);
    Slot& slot = *free_.back();
    slot.cut =
        next_cut(job->rules, job->position, job->end(), reinterpret_cast<std::uintptr_t>(memory));
    slot.fd = slot.cut.direct ? job->file->direct_fd() : job->file->buffered_fd();
    slot.bounce = slot.cut.bounce ? take_bounce() : nullptr;
    free_.pop_back();
    ++busy_;
    slot.job = job;
    slot.done = 0;
    slot.attempts = 0;
    job->position = slot.cut.end;
    job->left.fetch_add(1, std::memory_order_relaxed);
    if (slot.cut.bounce && slot.bounce == nullptr) {
      deferred_.push_back(&slot);
    } else {
      begin(slot);
    }
  }
  return job->position < job->end();
}

void Worker::begin(Slot& slot) {
  const AsyncIoRequest& request = slot.job->request;
  if (slot.bounce != nullptr && request.write) {
    std::memcpy(slot.bounce,
                static_cast<const char*>(request.data) + (slot.cut.begin - request.offset),
                static_cast<std::size_t>(slot.cut.end - slot.cut.begin));
  }
  send(slot);
}

void Worker::send(Slot& slot) {
  const AsyncIoRequest& request = slot.job->request;
  char* const start = slot.bounce != nullptr
                          ? slot.bounce
                          : static_cast<char*>(request.data) + (slot.cut.begin - request.offset);
  slot.write = request.write;
  slot.data = start + slot.done;
  slot.offset = slot.cut.io_begin + slot.done;
  slot.length = static_cast<std::uint32_t>(slot.cut.io_end - slot.cut.io_begin - slot.done);
  backend_->start(slot);
  if (++unsent_ >= kSentAtOnce) flush();
}

void Worker::flush() {
  unsent_ = 0;
  backend_->flush();
}

void Worker::ended(Slot& slot, std::int64_t result) {
  Job& job = *slot.job;
  const bool write = job.request.write;
  if (result < 0) {
    const int code = static_cast<int>(-result);
    if ((code == EINTR || code == EAGAIN) && ++slot.attempts < kAttempts) {
      sched_yield();
      return send(slot);
    }
    const bool is_direct = slot.cut.direct && slot.fd == job.file->direct_fd();
    if (!is_direct || (code != EINVAL && code != EOPNOTSUPP)) return give_up(slot, code);
    // Some file systems take the flag when the file is opened and refuse it here.
    job.file->give_up_direct();
  } else {
    slot.done += result;
    if (result > 0) slot.attempts = 0;
    const std::int64_t reached = slot.cut.io_begin + slot.done;
    if (reached >= slot.cut.end) return finish(slot);
    if (result == 0 && !write) {
      const std::int64_t begin = std::max(slot.cut.begin, reached);
      job.fail(too_short(job, begin, slot.cut.end, reached));
      return give_up(slot, 0);
    }
    if (result == 0 && ++slot.attempts >= 3) return give_up(slot, EIO, "nothing was written");
    // Short: once more for the rest.
    if (slot.fd != job.file->direct_fd() || reached % job.rules.align == 0) return send(slot);
  }
  // Now by way of the page cache, which takes any offset.
  try {
    slot.fd = job.file->buffered_fd();
    slot.cut.direct = false;
  } catch (const std::system_error& error) {
    job.fail(error);
    return give_up(slot, 0);
  }
  send(slot);
}

void Worker::give_up(Slot& slot, int code, const std::string& why) {
  Job& job = *slot.job;
  if (code != 0) {
    const std::int64_t begin = std::max(slot.cut.begin, slot.cut.io_begin + slot.done);
    job.fail(io_error(code, what_failed(job.request, begin, slot.cut.end, job.file->name()) +
                                (why.empty() ? "" : ": " + why)));
  }
  files_.forget(*job.file);
  finish(slot);
}

void Worker::finish(Slot& slot) {
  const AsyncIoRequest& request = slot.job->request;
  if (slot.bounce != nullptr) {
    if (!request.write && !slot.job->failed.load(std::memory_order_relaxed)) {
      std::memcpy(static_cast<char*>(request.data) + (slot.cut.begin - request.offset),
                  slot.bounce + (slot.cut.begin - slot.cut.io_begin),
                  static_cast<std::size_t>(slot.cut.end - slot.cut.begin));
    }
    free_bounce_.push_back(slot.bounce);
    slot.bounce = nullptr;
  }
  const std::shared_ptr<Job> job = std::move(slot.job);
  free_.push_back(&slot);
  --busy_;
  release(job);
}

void Worker::release(const std::shared_ptr<Job>& job) {
  if (job->left.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  job->file.reset();
  listener_.ended(job);
}

char* Worker::take_bounce() {
  if (free_bounce_.empty() && bounce_count_ < kBounces) {
    void* memory = nullptr;
    if (posix_memalign(&memory, kBounceAlign, static_cast<std::size_t>(bounce_size_)) == 0) {
      ++bounce_count_;
      return static_cast<char*>(memory);
    }
    if (bounce_count_ == 0) throw io_error(ENOMEM, "no memory for operations that are not aligned");
  }
  if (free_bounce_.empty()) return nullptr;
  char* const memory = free_bounce_.back();
  free_bounce_.pop_back();
  return memory;
}

}  // namespace ds

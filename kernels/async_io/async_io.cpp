#include "async_io.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <future>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "fork_generation.h"
#include "worker.h"

namespace ds {
namespace {

void check(const AsyncIoOptions& options) {
  const auto refuse = [](const char* what, std::int64_t value) {
    throw std::invalid_argument(std::string("async_io: ") + what + " (it is " +
                                std::to_string(value) + ")");
  };
  if (options.block_size < 1 || options.block_size > std::int64_t{1} << 30) {
    refuse("block_size must be from 1 to 1 GiB", options.block_size);
  }
  if (options.queue_depth < 1 || options.queue_depth > 32768) {
    refuse("queue_depth must be from 1 to 32768", options.queue_depth);
  }
  if (options.threads < 1 || options.threads > 1024) {
    refuse("threads must be from 1 to 1024", options.threads);
  }
}

AsyncIoOptions rounded(AsyncIoOptions options) {
  const std::int64_t page = sysconf(_SC_PAGESIZE);
  options.block_size = (options.block_size + page - 1) / page * page;
  return options;
}

void check(const AsyncIoRequest& request) {
  const auto refuse = [](const std::string& what) {
    throw std::invalid_argument("async_io: " + what);
  };
  if (request.size < 0) refuse("the size is negative: " + std::to_string(request.size));
  if (request.offset < 0) refuse("the offset is negative: " + std::to_string(request.offset));
  if (request.size > INT64_MAX - request.offset) refuse("offset and size exceed 64 bits");
  if (request.size > 0 && request.data == nullptr) refuse("the memory is a null pointer");
  if (request.fd < 0 && request.path.empty()) refuse("there is neither a path nor a descriptor");
  if (request.path.find('\0') != std::string::npos) refuse("the path has a zero byte");
}

// Throws EIO at the first difference.
void validate(const AsyncIoRequest& request) {
  const std::shared_ptr<File> file = File::open(request.path, false, false);
  std::vector<char> chunk(1 << 20);
  for (std::int64_t done = 0; done < request.size;) {
    const auto want = static_cast<std::size_t>(
        std::min<std::int64_t>(request.size - done, static_cast<std::int64_t>(chunk.size())));
    const ssize_t n = pread(file->buffered_fd(), chunk.data(), want, request.offset + done);
    if (n < 0 && errno == EINTR) continue;
    const std::string where = " while comparing memory with " + file->name() + " at offset " +
                              std::to_string(request.offset + done);
    if (n < 0) throw io_error(errno, "cannot read" + where);
    if (n == 0) throw io_error(ENODATA, "the file ended" + where);
    const auto* const memory = static_cast<const char*>(request.data) + done;
    if (std::memcmp(memory, chunk.data(), static_cast<std::size_t>(n)) != 0) {
      throw io_error(EIO, "there is a difference" + where);
    }
    done += n;
  }
}

}  // namespace

class AsyncIo : public JobListener {
 public:
  explicit AsyncIo(const AsyncIoOptions& options)
      : options_(rounded(options)), inline_worker_(make_posix(), 1, options_, files_, *this) {
    std::vector<std::future<std::pair<AsyncIoEngine, std::string>>> chosen;
    try {
      for (int i = 0; i < options_.threads; ++i) {
        std::promise<std::pair<AsyncIoEngine, std::string>> promise;
        chosen.push_back(promise.get_future());
        threads_.push_back(start_thread(std::move(promise)));
      }
      engine_ = AsyncIoEngine::automatic;
      for (auto& one : chosen) {
        const auto [engine, reason] = one.get();
        if (engine > engine_) {  // The slowest of all, if they differ.
          engine_ = engine;
          reason_ = reason;
        }
      }
    } catch (...) {
      stop();
      throw;
    }
  }

  ~AsyncIo() override { stop(); }

  bool is_of_this_process() const { return fork_generation() == generation_; }

  AsyncIoEngine engine() const { return engine_; }
  const std::string& reason() const { return reason_; }

  void submit(AsyncIoRequest request) {
    auto job = make_job(std::move(request));
    {
      const std::lock_guard lock(mutex_);
      ++pending_;
    }
    queue_.push_back(std::move(job));
  }

  std::int64_t wait() {
    check_process();
    // Another thread that waits would find nothing pending and return before this one is done with
    // what has ended.
    const std::lock_guard one_at_a_time(wait_mutex_);
    std::vector<std::shared_ptr<Job>> finished;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return pending_ == 0; });
      finished.swap(finished_);
    }
    std::int64_t succeeded = 0, failed = 0;
    std::optional<std::system_error> first;
    std::exception_ptr other;  // Of `succeeded`.
    for (const std::shared_ptr<Job>& job : finished) {
      try {
        conclude(*job);
        ++succeeded;
      } catch (const std::system_error& error) {
        if (!first) first = error;
        ++failed;
      } catch (...) {
        if (!other) other = std::current_exception();
      }
    }
    if (failed > 1) {
      throw std::system_error(
          first->code(), text_of(*first) + " (and " + std::to_string(failed - 1) + " more failed)");
    }
    if (first) throw *first;
    if (other) std::rethrow_exception(other);
    return succeeded;
  }

  void run(AsyncIoRequest request) {
    const bool is_small = request.size <= options_.block_size;
    const auto job = make_job(std::move(request));
    job->waited_for = true;
    std::unique_lock inline_lock(inline_mutex_, std::defer_lock);
    if (is_small && inline_lock.try_lock()) {
      JobQueue only;
      only.push_back(job);
      inline_worker_.work(only);
      inline_lock.unlock();
    } else {
      queue_.push_back(job);
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return job->done; });
    }
    conclude(*job);
  }

  void ended(const std::shared_ptr<Job>& job) override {
    const std::lock_guard lock(mutex_);
    job->done = true;
    if (job->waited_for) {
      changed_.notify_all();
    } else {
      finished_.push_back(job);
      if (--pending_ == 0) changed_.notify_all();
    }
  }

 private:
  static std::string text_of(const std::system_error& error) {
    // what() is the text, a colon and what the code means.
    std::string text = error.what();
    const std::string tail = ": " + error.code().message();
    if (text.size() > tail.size() &&
        text.compare(text.size() - tail.size(), tail.size(), tail) == 0) {
      text.resize(text.size() - tail.size());
    }
    return text;
  }

  std::thread start_thread(std::promise<std::pair<AsyncIoEngine, std::string>> promise) {
    // Signals are for the threads of the program.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::exception_ptr failure;
    std::thread thread;
    try {
      thread = std::thread([this, p = std::move(promise)]() mutable { serve(std::move(p)); });
    } catch (...) {
      failure = std::current_exception();
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (failure) std::rethrow_exception(failure);
    pthread_setname_np(thread.native_handle(), "ds-async-io");
    return thread;
  }

  // The life of a worker thread. A ring belongs to the thread that makes it.
  void serve(std::promise<std::pair<AsyncIoEngine, std::string>> promise) {
    std::unique_ptr<Worker> worker;
    try {
      ChosenBackend chosen = choose_backend(options_.engine, options_.queue_depth);
      worker = std::make_unique<Worker>(std::move(chosen.backend), options_.queue_depth, options_,
                                        files_, *this);
      promise.set_value({chosen.engine, chosen.reason});
    } catch (...) {
      promise.set_exception(std::current_exception());
      return;
    }
    while (queue_.wait()) {
      worker->work(queue_);
      worker->tidy();
      files_.close_idle(std::chrono::seconds(1));
    }
  }

  void stop() {
    queue_.stop();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  void check_process() const {
    if (!is_of_this_process()) {
      throw std::logic_error(
          "async_io: opened by a process of which this one is a fork; open "
          "another here");
    }
  }

  std::shared_ptr<Job> make_job(AsyncIoRequest request) {
    check_process();
    check(request);
    auto job = std::make_shared<Job>();
    if (request.fd >= 0) {
      job->file = File::of_descriptor(request.fd, request.write, options_.direct);
      if (request.validate) {
        throw std::invalid_argument("async_io: what is given as a descriptor cannot be validated");
      }
    }
    job->request = std::move(request);
    job->asked = files_.ask();
    return job;
  }

  // By the thread that waits: what the owner does when it goes, or `succeeded` with what was read
  // (Python objects, say), is its business.
  void conclude(Job& job) {
    struct LetGo {
      Job& job;
      ~LetGo() {
        job.request.succeeded = nullptr;
        job.request.owner.reset();
      }
    };
    const LetGo at_the_end{job};
    if (job.failure) throw *job.failure;
    if (job.request.validate) validate(job.request);
    if (job.request.succeeded) job.request.succeeded();
  }

  const AsyncIoOptions options_;
  const unsigned generation_ = fork_generation();
  AsyncIoEngine engine_ = AsyncIoEngine::automatic;
  std::string reason_;
  FileCache files_;
  JobQueue queue_;

  std::mutex wait_mutex_;  // Before mutex_.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t pending_ = 0;  // Submitted and not ended.
  std::vector<std::shared_ptr<Job>> finished_;

  std::mutex inline_mutex_;
  Worker inline_worker_;
  std::vector<std::thread> threads_;
};

AsyncIo* async_io_open(const AsyncIoOptions& options) {
  check(options);
  return new AsyncIo(options);
}

void async_io_close(AsyncIo* io) {
  // In a child of fork() there are no threads to join, and what they hold will never be let go.
  if (io != nullptr && io->is_of_this_process()) delete io;
}

AsyncIoEngine async_io_engine(const AsyncIo& io) {
  return io.engine();
}

std::string async_io_engine_reason(const AsyncIo& io) {
  return io.reason();
}

void async_io_submit(AsyncIo& io, AsyncIoRequest request) {
  io.submit(std::move(request));
}

std::int64_t async_io_wait(AsyncIo& io) {
  return io.wait();
}

void async_io_run(AsyncIo& io, AsyncIoRequest request) {
  io.run(std::move(request));
}

}  // namespace ds

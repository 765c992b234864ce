#pragma once

// The system's ways to have several reads and writes in flight. One backend belongs to one thread.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "async_io.h"

namespace ds {

// One read or write as the kernel sees it. It and its memory stay where they are until it is done.
struct Io {
  bool write = false;
  int fd = -1;
  char* data = nullptr;
  std::uint32_t length = 0;
  std::int64_t offset = 0;

  // The backend's own.
  int file_slot = -1;
};

struct Completion {
  Io* io;
  std::int64_t result;  // Bytes, or -errno.
};

class Backend {
 public:
  virtual ~Backend() = default;

  // Takes it over; it may start at once or with the next wait_some. At most `depth` are in flight.
  virtual void start(Io& io) = 0;
  // Starts what start() took.
  virtual void flush() = 0;
  // Appends what has ended; waits until at least one has. Only if something is in flight.
  virtual void wait_some(std::vector<Completion>& ended) = 0;
  // Lets go of memory that is no longer locked and of whatever else is only kept for speed.
  virtual void tidy() {}
};

// Throws std::system_error where the kernel refuses. To be called by the thread that will use it.
std::unique_ptr<Backend> make_uring(int depth);
std::unique_ptr<Backend> make_libaio(int depth);
std::unique_ptr<Backend> make_posix();

struct ChosenBackend {
  std::unique_ptr<Backend> backend;
  AsyncIoEngine engine;
  std::string reason;  // Why none of the better ones.
};

// `wanted` or, for automatic, what DS_AIO_ENGINE names or else the best that works. Throws
// std::system_error if the one that was named does not.
ChosenBackend choose_backend(AsyncIoEngine wanted, int depth);

}  // namespace ds

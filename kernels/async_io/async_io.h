#pragma once

// Memory to and from files, whole or in parts, past the page cache where the file system can do
// that, one operation at a time or many at once. No torch.
//
// Any offset, any length, any address: what the device cannot take as it is goes through memory of
// our own (reads, and writes from odd addresses) or, the rest of a page that a write only touches
// in part, through the page cache, so that writers of neighbouring ranges never undo each other.
//
// Failures are std::system_error with the code of the system call and a text that names what, the
// file, the offset and the reason; a file that ends too early is ENODATA. After a failed write the
// bytes of its range are undefined; nothing outside its range is touched.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "ds_op.h"

namespace ds {

// How the system is asked. All do the same; the first that the kernel grants is the fastest.
enum class AsyncIoEngine : std::uint8_t {
  automatic,  // io_uring, else libaio, else posix; the environment's DS_AIO_ENGINE names one.
  io_uring,
  libaio,  // The kernel's older asynchronous interface.
  posix,   // pread and pwrite: as many at once as there are threads.
};

DS_EXPORT const char* async_io_engine_name(AsyncIoEngine engine);
// Of "auto", "io_uring", "libaio", "posix"; anything else is a std::invalid_argument.
DS_EXPORT AsyncIoEngine async_io_engine_named(const std::string& name);

struct AsyncIoOptions {
  std::int64_t block_size = 1 << 20;  // Bytes of one operation; rounded up to a page.
  int queue_depth = 128;              // Operations in flight, per thread.
  int threads = 1;                    // Each with a queue of its own; blocks are shared out.
  AsyncIoEngine engine = AsyncIoEngine::automatic;  // Named: that one, or an error that says why.
  bool direct = true;          // Past the page cache where the file system allows it.
  bool single_submit = false;  // One system call a block instead of one for all that fit.
};

struct AsyncIoRequest {
  bool write = false;
  void* data = nullptr;  // Read from if `write`. Untouched by others until the operation is done.
  std::int64_t size = 0;
  std::string path;         // A write makes the file if there is none, and never shortens it.
  int fd = -1;              // Instead of a path. Duplicated, so it may be closed at once.
  std::int64_t offset = 0;  // In the file.
  bool validate = false;    // Compare file and memory when done; a difference is EIO.
  // Called when the operation has succeeded, by the thread that waits for it. What it throws is
  // thrown there, after all operations were seen to.
  std::function<void()> succeeded;
  std::shared_ptr<void> owner;  // Of `data`; let go in wait(), by the thread that calls it.
};

// Worker threads, their queues, and the files they have open. Files stay open for a second after
// their last use; one that was replaced, removed or renamed in the meantime is noticed.
// Every function may be called from any thread. Not in a child of fork(): that is an error.
class AsyncIo;

struct AsyncIoCloser {
  void operator()(AsyncIo* io) const;
};
using AsyncIoPtr = std::unique_ptr<AsyncIo, AsyncIoCloser>;

// std::invalid_argument for options out of range.
DS_EXPORT AsyncIo* async_io_open(const AsyncIoOptions& options);
// Waits for what is in flight.
DS_EXPORT void async_io_close(AsyncIo* io);
inline void AsyncIoCloser::operator()(AsyncIo* io) const {
  async_io_close(io);
}

// The engine in use, and why a better one is not ("io_uring: Operation not permitted"; or empty).
DS_EXPORT AsyncIoEngine async_io_engine(const AsyncIo& io);
DS_EXPORT std::string async_io_engine_reason(const AsyncIo& io);

// Starts the operation. Only what can be seen without touching the file is thrown here; all else
// is reported by async_io_wait. The order of operations that are in flight together is undefined.
DS_EXPORT void async_io_submit(AsyncIo& io, AsyncIoRequest request);
// Waits for all that was submitted; how many succeeded since the last call. Throws the first
// failure, after all have ended; the text counts the others. Of several threads that wait, each
// returns after all of that is done, and one of them has the count and the failure.
DS_EXPORT std::int64_t async_io_wait(AsyncIo& io);
// Does it and returns, whatever else is in flight. At most a block: in the calling thread.
DS_EXPORT void async_io_run(AsyncIo& io, AsyncIoRequest request);

// Bytes of the file (or block device).
DS_EXPORT std::int64_t async_io_file_size(const std::string& path);

// Page-aligned memory that is never swapped out, and that io_uring keeps mapped for the device.
// ENOMEM where RLIMIT_MEMLOCK does not allow it; the text has the limit and what is locked already.
DS_EXPORT void* async_io_lock_memory(std::int64_t size);
// Unlocks; the memory stays readable and writable until async_io_unmap_memory. False: not locked.
DS_EXPORT bool async_io_unlock_memory(void* start);
// Unlocks if need be, and gives it back.
DS_EXPORT void async_io_unmap_memory(void* start);
// All of it lies in one locked piece.
DS_EXPORT bool async_io_is_locked(const void* start, std::int64_t size);

}  // namespace ds

// Writes and reads a temporary file (TMPDIR, else /tmp) through each engine that the kernel grants.
extern "C" DS_EXPORT int ds_self_test_async_io(const char* device, char* detail,
                                               unsigned long detail_size);

#pragma once

// Reading and writing with an end in time.

#include <stddef.h>
#include <stdint.h>

struct patience {
  int64_t until_ms;  // On the monotonic clock: then it is over.
  int64_t stall_ms;  // So long without a byte and it is over too.
};

enum stream_end {
  kStreamDone,
  kStreamEnded,   // The other side closed it.
  kStreamSilent,  // Patience ran out.
  kStreamBroken,  // A system error; in *error.
};

// Exactly `size` bytes and none beyond. Works for pipes, files and sockets, blocking or not.
enum stream_end stream_read(int fd, void* to, size_t size, struct patience patience, long* error);
// To a socket, without a signal if nobody reads.
enum stream_end stream_send(int fd, const void* from, size_t size, struct patience patience,
                            long* error);

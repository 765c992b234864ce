#include "orchestrator/loader/stream.h"

#include "orchestrator/loader/sys.h"

// Waits until something can be done. True if so.
static int wait_for(int fd, short events, struct patience patience) {
  int64_t until = sys_now_ms() + patience.stall_ms;
  if (until > patience.until_ms) until = patience.until_ms;
  for (;;) {
    int64_t left = until - sys_now_ms();
    if (left <= 0) return 0;
    struct timespec timeout = {left / 1000, left % 1000 * 1000000};
    struct pollfd poll = {fd, events, 0};
    // An error and a hang-up count as ready too: the call that follows says which.
    if (sys_ppoll(&poll, 1, &timeout) > 0) return 1;
  }
}

enum stream_end stream_read(int fd, void* to, size_t size, struct patience patience, long* error) {
  size_t done = 0;
  while (done < size) {
    if (!wait_for(fd, POLLIN, patience)) return kStreamSilent;
    long n = sys_read(fd, (char*)to + done, size - done);
    if (n == -EINTR || n == -EAGAIN) continue;
    if (n < 0) {
      *error = -n;
      return kStreamBroken;
    }
    if (n == 0) return kStreamEnded;
    done += (size_t)n;
  }
  return kStreamDone;
}

enum stream_end stream_send(int fd, const void* from, size_t size, struct patience patience,
                            long* error) {
  size_t done = 0;
  while (done < size) {
    if (!wait_for(fd, POLLOUT, patience)) return kStreamSilent;
    long n = sys_send(fd, (const char*)from + done, size - done);
    if (n == -EINTR || n == -EAGAIN) continue;
    if (n < 0) {
      *error = -n;
      return kStreamBroken;
    }
    done += (size_t)n;
  }
  return kStreamDone;
}

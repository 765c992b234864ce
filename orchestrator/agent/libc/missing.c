// What Debian's static libraries, built for glibc, want of a libc and musl does not have.

#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// libstdc++ counts references without atomics while this is set. It never is.
char __libc_single_threaded = 0;

// How libgcc finds the unwind tables of shared objects. A static program's are registered by its
// start files and found before this is asked.
int _dl_find_object(void* address, void* result);
int _dl_find_object(void* address, void* result) {
  (void)address;
  (void)result;
  return -1;
}

// The forms that -D_FORTIFY_SOURCE gives these calls; `room` is what the compiler knows.
#define CHECKED(call, room)   \
  if (size > (room)) abort(); \
  call

void* __memcpy_chk(void* to, const void* from, size_t size, size_t room);
void* __memcpy_chk(void* to, const void* from, size_t size, size_t room) {
  CHECKED(return memcpy(to, from, size), room);
}

void* __memmove_chk(void* to, const void* from, size_t size, size_t room);
void* __memmove_chk(void* to, const void* from, size_t size, size_t room) {
  CHECKED(return memmove(to, from, size), room);
}

void* __memset_chk(void* to, int byte, size_t size, size_t room);
void* __memset_chk(void* to, int byte, size_t size, size_t room) {
  CHECKED(return memset(to, byte, size), room);
}

void __explicit_bzero_chk(void* to, size_t size, size_t room);
void __explicit_bzero_chk(void* to, size_t size, size_t room) {
  CHECKED(explicit_bzero(to, size), room);
}

// musl waits by the clock that a condition was made with, and std::condition_variable makes its own
// for the one that can be set. What is left until then is the same by both clocks, and musl hands
// the kernel what is left: setting the clock while somebody waits changes nothing.
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const struct timespec* until);
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const struct timespec* until) {
  enum { kSecond = 1000000000 };
  struct timespec now;
  struct timespec end;
  if (clock_gettime(clock, &now) != 0 || until->tv_nsec < 0 || until->tv_nsec >= kSecond) {
    return EINVAL;
  }
  clock_gettime(CLOCK_REALTIME, &end);
  long nanoseconds = end.tv_nsec + until->tv_nsec - now.tv_nsec;
  end.tv_sec += until->tv_sec - now.tv_sec;
  if (nanoseconds < 0) {
    nanoseconds += kSecond;
    --end.tv_sec;
  }
  end.tv_sec += nanoseconds / kSecond;
  end.tv_nsec = nanoseconds % kSecond;
  return pthread_cond_timedwait(condition, mutex, &end);
}

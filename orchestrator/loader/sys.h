#pragma once

// The kernel's interface, as much of it as the loader uses; all of it is older than ten years. Each
// call returns what the kernel does: a negative error number if it failed.

#include <asm/fcntl.h>
#include <asm/poll.h>
#include <asm/stat.h>
#include <asm/unistd.h>
#include <linux/errno.h>
#include <linux/fcntl.h>
#include <linux/stat.h>
#include <linux/time.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__)

static inline long sys_call6(long number, long a, long b, long c, long d, long e, long f) {
  long result;
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  register long r9 __asm__("r9") = f;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return result;
}

// The kernel leaves the arguments on the stack; start_c takes a pointer to them.
#define SYS_ENTRY                 \
  __asm__(                        \
      ".globl _start\n"           \
      ".type _start, @function\n" \
      "_start:\n"                 \
      "  xor %ebp, %ebp\n"        \
      "  mov %rsp, %rdi\n"        \
      "  and $-16, %rsp\n"        \
      "  call start_c\n"          \
      "  hlt\n")

#elif defined(__aarch64__)

static inline long sys_call6(long number, long a, long b, long c, long d, long e, long f) {
  register long x8 __asm__("x8") = number;
  register long x0 __asm__("x0") = a;
  register long x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c;
  register long x3 __asm__("x3") = d;
  register long x4 __asm__("x4") = e;
  register long x5 __asm__("x5") = f;
  __asm__ volatile("svc 0"
                   : "+r"(x0)
                   : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                   : "memory");
  return x0;
}

#define SYS_ENTRY                 \
  __asm__(                        \
      ".globl _start\n"           \
      ".type _start, %function\n" \
      "_start:\n"                 \
      "  mov x29, #0\n"           \
      "  mov x30, #0\n"           \
      "  mov x0, sp\n"            \
      "  and sp, x0, #-16\n"      \
      "  bl start_c\n"            \
      "  brk #0\n")

#else
#error "the loader knows the system calls of x86_64 and aarch64"
#endif

enum {
  kAfInet = 2,
  kAfInet6 = 10,
  kSockStream = 1,
  kSockNonblock = O_NONBLOCK,
  kSockCloexec = O_CLOEXEC,
  kSolSocket = 1,
  kSoError = 4,
  kMsgNosignal = 0x4000,
  kProtReadWrite = 3,
  kMapPrivateAnonymous = 0x22,
  kClockMonotonic = 1,
};

static inline long sys_read(int fd, void* to, size_t size) {
  return sys_call6(__NR_read, fd, (long)to, (long)size, 0, 0, 0);
}
static inline long sys_write(int fd, const void* from, size_t size) {
  return sys_call6(__NR_write, fd, (long)from, (long)size, 0, 0, 0);
}
static inline long sys_openat(int folder, const char* path, int flags, int mode) {
  return sys_call6(__NR_openat, folder, (long)path, flags, mode, 0, 0);
}
static inline long sys_close(int fd) {
  return sys_call6(__NR_close, fd, 0, 0, 0, 0, 0);
}
static inline long sys_fstat(int fd, struct stat* status) {
  return sys_call6(__NR_fstat, fd, (long)status, 0, 0, 0, 0);
}
static inline long sys_fchmod(int fd, unsigned mode) {
  return sys_call6(__NR_fchmod, fd, mode, 0, 0, 0, 0);
}
static inline long sys_fsync(int fd) {
  return sys_call6(__NR_fsync, fd, 0, 0, 0, 0, 0);
}
static inline long sys_unlinkat(int folder, const char* name) {
  return sys_call6(__NR_unlinkat, folder, (long)name, 0, 0, 0, 0);
}
static inline long sys_renameat(int folder, const char* from, const char* to) {
  return sys_call6(__NR_renameat, folder, (long)from, folder, (long)to, 0, 0);
}
static inline long sys_linkat(int folder, const char* from, const char* to) {
  return sys_call6(__NR_linkat, folder, (long)from, folder, (long)to, 0, 0);
}
static inline long sys_execve(const char* path, char* const* argv, char* const* envp) {
  return sys_call6(__NR_execve, (long)path, (long)argv, (long)envp, 0, 0, 0);
}
static inline long sys_socket(int family, int type) {
  return sys_call6(__NR_socket, family, type, 0, 0, 0, 0);
}
static inline long sys_connect(int fd, const void* address, unsigned size) {
  return sys_call6(__NR_connect, fd, (long)address, size, 0, 0, 0);
}
static inline long sys_socket_error(int fd, int* error) {
  unsigned size = sizeof *error;
  return sys_call6(__NR_getsockopt, fd, kSolSocket, kSoError, (long)error, (long)&size, 0);
}
static inline long sys_send(int fd, const void* from, size_t size) {
  return sys_call6(__NR_sendto, fd, (long)from, (long)size, kMsgNosignal, 0, 0);
}
static inline long sys_ppoll(struct pollfd* fds, unsigned count, const struct timespec* timeout) {
  return sys_call6(__NR_ppoll, (long)fds, count, (long)timeout, 0, 8, 0);
}
__attribute__((noreturn)) static inline void sys_exit(int code) {
  for (;;) sys_call6(__NR_exit_group, code, 0, 0, 0, 0, 0);
}

// Null if there is none. Zeroed; pages that are never touched cost nothing.
static inline void* sys_memory(size_t size) {
  long at = sys_call6(__NR_mmap, 0, (long)size, kProtReadWrite, kMapPrivateAnonymous, -1, 0);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): it is what the kernel gives.
  return at < 0 && at > -4096 ? NULL : (void*)at;
}

static inline int64_t sys_now_ms(void) {
  struct timespec now = {0, 0};
  sys_call6(__NR_clock_gettime, kClockMonotonic, (long)&now, 0, 0, 0, 0);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

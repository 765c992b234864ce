#pragma once

// The loader's view of the kernel, and the calls that only looking at a node needs.

#include <asm/statfs.h>
#include <linux/utsname.h>

#include <cstddef>
#include <cstdint>

#include "orchestrator/loader/sys.h"

namespace dsi::facts {

inline long sys_getdents(int fd, void* to, std::size_t size) {
  return sys_call6(__NR_getdents64, fd, (long)to, (long)size, 0, 0, 0);
}
inline long sys_readlink(const char* path, char* to, std::size_t size) {
  return sys_call6(__NR_readlinkat, AT_FDCWD, (long)path, (long)to, (long)size, 0, 0);
}
// `what`: 0 is there, 1 may be executed, 2 may be written; by the effective user.
inline long sys_access(const char* path, int what) {
  return sys_call6(__NR_faccessat, AT_FDCWD, (long)path, what, 0, 0, 0);
}
inline long sys_statfs(const char* path, struct statfs* status) {
  return sys_call6(__NR_statfs, (long)path, (long)status, 0, 0, 0, 0);
}
inline long sys_uname(struct new_utsname* name) {
  return sys_call6(__NR_uname, (long)name, 0, 0, 0, 0, 0);
}
inline long sys_geteuid() {
  return sys_call6(__NR_geteuid, 0, 0, 0, 0, 0, 0);
}
inline long sys_affinity(void* mask, std::size_t size) {
  return sys_call6(__NR_sched_getaffinity, 0, (long)size, (long)mask, 0, 0, 0);
}
inline long sys_memory_limit(std::uint64_t limit[2], int resource) {
  return sys_call6(__NR_prlimit64, 0, resource, 0, (long)limit, 0, 0);
}
inline long sys_map_file(int fd, std::size_t size) {
  constexpr int kProtRead = 1;
  constexpr int kMapPrivate = 2;
  return sys_call6(__NR_mmap, 0, (long)size, kProtRead, kMapPrivate, fd, 0);
}
inline void sys_unmap(const void* at, std::size_t size) {
  sys_call6(__NR_munmap, (long)at, (long)size, 0, 0, 0, 0);
}
inline long sys_pipe(int ends[2]) {
  return sys_call6(__NR_pipe2, (long)ends, O_CLOEXEC, 0, 0, 0, 0);
}
inline long sys_dup_to(int from, int to) {
  return sys_call6(__NR_dup3, from, to, 0, 0, 0, 0);
}
inline long sys_fork() {
  constexpr int kSigchld = 17;
  return sys_call6(__NR_clone, kSigchld, 0, 0, 0, 0, 0);
}
inline long sys_own_group() {
  return sys_call6(__NR_setpgid, 0, 0, 0, 0, 0, 0);
}
inline void sys_kill_group(long pid) {
  constexpr int kSigkill = 9;
  sys_call6(__NR_kill, -pid, kSigkill, 0, 0, 0, 0);
  sys_call6(__NR_kill, pid, kSigkill, 0, 0, 0, 0);
}
// `dont_wait`: 0 from the kernel means that it runs.
inline long sys_wait(long pid, int* status, bool dont_wait) {
  return sys_call6(__NR_wait4, pid, (long)status, dont_wait ? 1 : 0, 0, 0, 0);
}
inline std::int64_t sys_clock_ns() {
  struct timespec now = {0, 0};
  sys_call6(__NR_clock_gettime, 0, (long)&now, 0, 0, 0, 0);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace dsi::facts

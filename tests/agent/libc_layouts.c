// What the static libraries of glibc's making and musl, both in the agent, must see alike: types
// and constants in the calls from the first to the second, as docs/adr/0006 lists them. Compiled
// twice, with the headers of each; libc_layouts_test.cc compares.

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>

#include "tests/agent/libc_layouts.h"

#define SIZE(type) \
  { "sizeof " #type, sizeof(type) }
#define FIELD(type, field)                                     \
  {"offset of " #field " in " #type, offsetof(type, field)}, { \
    "size of " #field " in " #type, sizeof(((type*)0)->field)  \
  }
#define VALUE(name) \
  { #name, (long)(name) }

const struct layout DSI_LAYOUTS[] = {
    // std::mutex, std::condition_variable and what else holds a lock lies in objects of ours and is
    // worked on by code of theirs.
    SIZE(pthread_mutex_t),
    SIZE(pthread_cond_t),
    SIZE(pthread_once_t),
    SIZE(pthread_key_t),
    SIZE(pthread_t),
    SIZE(pthread_attr_t),
    VALUE(PTHREAD_MUTEX_NORMAL),
    VALUE(PTHREAD_MUTEX_RECURSIVE),
    // Files and folders: std::filesystem.
    SIZE(struct stat),
    FIELD(struct stat, st_dev),
    FIELD(struct stat, st_ino),
    FIELD(struct stat, st_nlink),
    FIELD(struct stat, st_mode),
    FIELD(struct stat, st_size),
    FIELD(struct stat, st_mtim),
    FIELD(struct stat, st_ctim),
    FIELD(struct dirent, d_ino),
    FIELD(struct dirent, d_type),
    FIELD(struct dirent, d_name),
    SIZE(struct statvfs),
    FIELD(struct statvfs, f_frsize),
    FIELD(struct statvfs, f_blocks),
    FIELD(struct statvfs, f_bavail),
    SIZE(struct timespec),
    FIELD(struct timespec, tv_nsec),
    SIZE(struct pollfd),
    FIELD(struct pollfd, revents),
    SIZE(off_t),
    SIZE(ssize_t),
    SIZE(mode_t),
    SIZE(dev_t),
    SIZE(wchar_t),
    SIZE(wint_t),
    SIZE(mbstate_t),
    SIZE(clockid_t),
    VALUE(O_RDONLY),
    VALUE(O_WRONLY),
    VALUE(O_CREAT),
    VALUE(O_EXCL),
    VALUE(O_TRUNC),
    VALUE(O_CLOEXEC),
    VALUE(O_DIRECTORY),
    VALUE(O_NOFOLLOW),
    VALUE(O_NONBLOCK),
    VALUE(F_GETFD),
    VALUE(F_SETFD),
    VALUE(FD_CLOEXEC),
    VALUE(AT_FDCWD),
    VALUE(AT_REMOVEDIR),
    VALUE(AT_SYMLINK_NOFOLLOW),
    VALUE(UTIME_OMIT),
    VALUE(S_IFMT),
    VALUE(S_IFREG),
    VALUE(S_IFDIR),
    VALUE(S_IFLNK),
    VALUE(DT_DIR),
    VALUE(DT_REG),
    VALUE(DT_LNK),
    VALUE(CLOCK_REALTIME),
    VALUE(CLOCK_MONOTONIC),
    VALUE(SIGABRT),
    VALUE(SIGKILL),
    VALUE(POLLIN),
    VALUE(PROT_NONE),
    VALUE(PROT_READ),
    VALUE(PROT_WRITE),
    VALUE(MAP_PRIVATE),
    VALUE(MAP_ANONYMOUS),
    VALUE(MADV_DODUMP),
    VALUE(MADV_DONTDUMP),
    VALUE(_SC_PAGESIZE),
    VALUE(_SC_NPROCESSORS_ONLN),
    VALUE(EINTR),
    VALUE(EAGAIN),
    VALUE(ENOENT),
    VALUE(EEXIST),
    VALUE(ENOTDIR),
    VALUE(ELOOP),
    VALUE(ENAMETOOLONG),
    VALUE(ENOSYS),
    VALUE(ENOTSUP),
    VALUE(ETIMEDOUT),
    {0, 0},
};

// Static ones are not made by a call, so their bytes are what the other side takes for a new one.
const pthread_mutex_t DSI_NEW_MUTEX = PTHREAD_MUTEX_INITIALIZER;
const pthread_cond_t DSI_NEW_CONDITION = PTHREAD_COND_INITIALIZER;
const pthread_once_t DSI_NEW_ONCE = PTHREAD_ONCE_INIT;

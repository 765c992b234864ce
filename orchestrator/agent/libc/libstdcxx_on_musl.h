#pragma once

// Comes before everything else in each C++ source of the agent: Debian's libstdc++ is set up for
// glibc, and the agent stands on musl. docs/adr/0006 says why that is sound; tests/agent/libc
// checks it.

// NOLINTBEGIN(bugprone-reserved-identifier): they are glibc's names.
// Which glibc libstdc++ was built for: one as new as it asks about.
#define __GLIBC_PREREQ(major, minor) 1

// Names in <locale>, which is included by others and of which nothing is linked.
#define __locale_t locale_t
#define _ISupper 0x100
#define _ISlower 0x200
#define _ISalpha 0x400
#define _ISdigit 0x800
#define _ISxdigit 0x1000
#define _ISspace 0x2000
#define _ISprint 0x4000
#define _ISgraph 0x8000
#define _ISblank 0x1
#define _IScntrl 0x2
#define _ISpunct 0x4
#define _ISalnum 0x8
// NOLINTEND(bugprone-reserved-identifier)

#include <pthread.h>
#include <time.h>

extern "C" {
// Waiting by a clock that nobody sets; in missing.c.
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const struct timespec* until);
// For std::timed_mutex. It is nowhere: who uses one finds out when linking.
int pthread_mutex_clocklock(pthread_mutex_t* mutex, clockid_t clock, const struct timespec* until);
}

// One op a kind of fault. Compiled once for each, with OP_<kind> defined.
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

__attribute__((unused)) static int say(char* detail, unsigned long size, const char* text,
                                       int code) {
  snprintf(detail, size, "%s", text);
  return code;
}

#ifdef OP_crash_on_load
__attribute__((constructor)) static void crash(void) {
  fprintf(stderr, "the last words\n");
  abort();
}
#endif

#ifdef OP_exit_on_load
__attribute__((constructor)) static void leave(void) {
  exit(0);
}
#endif

#ifdef OP_missing
int ds_absent(void);
#endif
#ifdef OP_undefined
// _ZN3c106Tensor4dataEv: c10::Tensor::data(), as another torch would have it.
int _ZN3c106Tensor4dataEv(void);
#endif
#ifdef OP_versioned
int ds_versioned(void);
#endif

#if defined(OP_stop) || defined(OP_kill)
// To the process that this one was forked from, if it is one that forks; never to an agent.
static void strike(int number) {
  char path[64];
  char name[16] = "";
  snprintf(path, sizeof path, "/proc/%d/comm", (int)getppid());
  int fd = open(path, O_RDONLY);
  if (fd >= 0 && read(fd, name, sizeof name - 1) > 0 && strncmp(name, "ds-probe", 8) == 0) {
    kill(getppid(), number);
    for (;;) pause();
  }
}
#endif

#ifdef OP_forge
// Whatever this process can write to hears that all is well, in every tongue that is spoken here.
// Not beyond 200, where a test's own surroundings may have left something open.
static void forge(void) {
  const char* lies[] = {"0000 result 0 forged\n", "ready", "started 1", "ended 1 0"};
  signal(SIGPIPE, SIG_IGN);
  for (int fd = 0; fd < 200; ++fd) {
    for (int i = 0; i < 4; ++i) {
      if (write(fd, lies[i], strlen(lies[i])) < 0) break;
    }
  }
}
#endif

#if defined(OP_undefined_torch)
// Not called, so that only a loader that resolves everything at once notices.
int _ZN3c106Tensor4dataEv(void);
int (*volatile undefined_torch)(void);
static int never(void) {
  return _ZN3c106Tensor4dataEv();
}
#endif

#define NAME2(op) ds_self_test_##op
#define NAME(op) NAME2(op)

#ifndef OP_no_test
EXPORT int NAME(OP_NAME)(const char* device, char* detail, unsigned long size) {
  (void)device;
  (void)detail;
  (void)size;
#if defined(OP_wrong)
  return say(detail, size, "element 3 is 1.5, the reference 1.25", 1);
#elif defined(OP_skipped)
  return say(detail, size, "no such device", 3);
#elif defined(OP_crash)
  abort();
#elif defined(OP_hang)
  // A child that outlives it must go, too.
  if (fork() == 0) pause();
  for (;;) pause();
#elif defined(OP_garbage)
  const char lie[] = "0000 result 0 fine\nresult 0 fine\n";
  for (int i = 0; i < 20000; ++i) {
    for (int fd = 1; fd <= 3; ++fd) {
      if (write(fd, lie, strlen(lie)) < 0) continue;
    }
  }
  return say(detail, size, "two\nlines", 1);
#elif defined(OP_stop)
  strike(SIGSTOP);
  return say(detail, size, "", 0);
#elif defined(OP_kill)
  strike(SIGKILL);
  return say(detail, size, "", 0);
#elif defined(OP_forge)
  forge();
  return say(detail, size, "it was caught", 1);
#elif defined(OP_undefined_torch)
  undefined_torch = never;
  return say(detail, size, "", 0);
#elif defined(OP_counted)
  FILE* runs = fopen(getenv("DSI_TEST_RUNS"), "ae");
  if (runs == NULL || fprintf(runs, "%s\n", device) < 0 || fclose(runs) != 0) {
    return say(detail, size, "cannot count", 1);
  }
  return say(detail, size, "counted", 0);
#elif defined(OP_missing)
  return ds_absent();
#elif defined(OP_undefined)
  return _ZN3c106Tensor4dataEv();
#elif defined(OP_versioned)
  return ds_versioned();
#else
  return say(detail, size, strcmp(device, "cpu") == 0 ? "" : device, 0);
#endif
}
#endif

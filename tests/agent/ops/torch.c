// What stands for libtorch_cpu.so: a library that several ops need. One with TORCH_<fault> defined
// for each way in which loading it can go wrong.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((visibility("default"))) int torch_is_here(void) {
  return 1;
}

// Notes each load in the file $DSI_TEST_LOADS.
__attribute__((constructor)) static void note(void) {
  const char* path = getenv("DSI_TEST_LOADS");
  FILE* loads = path != NULL ? fopen(path, "ae") : NULL;
  if (loads == NULL) return;
  fprintf(loads, "loaded\n");
  fclose(loads);
}

#if defined(TORCH_crash)
__attribute__((constructor)) static void crash(void) {
  fprintf(stderr, "torch dies\n");
  abort();
}
#elif defined(TORCH_hang)
__attribute__((constructor)) static void hang(void) {
  for (;;) pause();
}
#elif defined(TORCH_thread)
static void* rest(void* unused) {
  for (;;) pause();
  return unused;
}
__attribute__((constructor)) static void start(void) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, rest, NULL) != 0) abort();
}
#elif defined(TORCH_open)
__attribute__((constructor)) static void keep_open(void) {
  if (dup(0) < 0) abort();
}
#elif defined(TORCH_undefined)
// Another libc10 than the one it was built with: found by a loader that resolves all at once.
int _ZN3c105ErrorD1Ev(void);
__attribute__((visibility("default"))) int torch_fails(void) {
  return _ZN3c105ErrorD1Ev();
}
#endif

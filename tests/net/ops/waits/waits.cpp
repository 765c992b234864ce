#include <unistd.h>

// So that a test can do something in the middle of a probe.
extern "C" __attribute__((visibility("default"))) int ds_self_test_waits(const char*, char*,
                                                                         unsigned long) {
  while (::access("/tmp/wait", F_OK) == 0) ::usleep(20000);
  return 0;
}

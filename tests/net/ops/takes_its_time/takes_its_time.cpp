#include <unistd.h>

// Keeps its host busy for longer than the window of a test.
extern "C" __attribute__((visibility("default"))) int ds_self_test_takes_its_time(const char*,
                                                                                  char*,
                                                                                  unsigned long) {
  ::sleep(9);
  return 0;
}

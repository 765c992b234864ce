#include <cstdlib>

namespace {

struct Crash {
  Crash() { std::abort(); }
} crash;

}  // namespace

extern "C" __attribute__((visibility("default"))) int ds_self_test_crashes_on_load(const char*,
                                                                                   char*,
                                                                                   unsigned long) {
  return 0;
}

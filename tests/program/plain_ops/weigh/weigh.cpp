#include "weigh.h"

#include <pthread.h>

#include <cmath>
#include <cstdio>
#include <stdexcept>

#include "ds_op.h"

namespace ds {

double weigh(const std::vector<double>& w, const std::vector<double>& x) {
  if (w.size() != x.size()) throw std::invalid_argument(__FILE__);
  double sum = 0;
  for (std::size_t i = 0; i < w.size(); ++i) sum += w[i] * x[i];
  return sum;
}

}  // namespace ds

// pthread_create has a new symbol version since glibc 2.34: compiled there, this needs 2.34.
static void* run(void* result) {
  *static_cast<double*>(result) = ds::weigh({1, 2, 3}, {4, 5, 6});
  return nullptr;
}

extern "C" DS_EXPORT int ds_self_test_weigh(const char*, char* detail, unsigned long size) {
  pthread_t thread;
  double sum = 0;
  if (pthread_create(&thread, nullptr, run, &sum) != 0) return DS_SELF_TEST_SKIPPED;
  pthread_join(thread, nullptr);
  std::snprintf(detail, size, "%g", sum);
  return std::fabs(sum - 32) < 1e-12 ? DS_SELF_TEST_OK : DS_SELF_TEST_WRONG;
}

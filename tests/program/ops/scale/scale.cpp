#include "scale.h"

#include <cuda_runtime_api.h>

#include <cstdio>

#include "ds_op.h"

extern "C" DS_EXPORT int ds_self_test_scale(const char*, char* detail, unsigned long size) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    std::snprintf(detail, size, "there is no device");
    return DS_SELF_TEST_SKIPPED;
  }
  void* memory = nullptr;
  float host[3] = {1, 2, 3};
  cudaMalloc(&memory, sizeof host);
  auto* values = static_cast<float*>(memory);
  cudaMemcpy(values, host, sizeof host, cudaMemcpyHostToDevice);
  int failed = ds::scale(values, 3, 2);
  cudaMemcpy(host, values, sizeof host, cudaMemcpyDeviceToHost);
  cudaFree(values);
  std::snprintf(detail, size, "%g %g %g", host[0], host[1], host[2]);
  bool right = failed == 0 && host[0] == 2 && host[1] == 4 && host[2] == 6;
  return right ? DS_SELF_TEST_OK : DS_SELF_TEST_WRONG;
}

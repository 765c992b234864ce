#include "scale.h"

namespace ds {

__global__ void scale_all(float* values, int n, float factor) {
  int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) values[i] *= factor;
}

int scale(float* values, int n, float factor) {
  scale_all<<<(n + 255) / 256, 256>>>(values, n, factor);
  return static_cast<int>(cudaGetLastError());
}

}  // namespace ds

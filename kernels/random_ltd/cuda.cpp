// The host code of the op on a GPU.

#include <functional>

#include "cuda_host.cuh"
#include "launch.h"
#include "plan.h"
#include "self_test_cases.h"

namespace ds {
namespace {

void on_device(const char* function, const CudaOptions& cuda,
               const std::function<void(void*)>& launch) {
  int device = cuda.device;
  if (device < 0) check_cuda(cudaGetDevice(&device), "while asking for the current CUDA device");
  const DeviceGuard guard(device);
  launch(cuda.stream);
  check_cuda(cudaGetLastError(), function);
}

void self_test(int device, Comparison& comparison) {
  random_ltd::test_all_functions<OnDeviceFor>(CudaOptions{device, nullptr}, comparison);
}

}  // namespace

void token_sort(const TokenSort& sort, const CudaOptions& cuda) {
  if (!random_ltd::check(sort)) return;
  on_device("ds::token_sort", cuda, [&](void* stream) { random_ltd_cuda::sort(sort, stream); });
}

void token_gather(const TokenRows& rows, const CudaOptions& cuda) {
  if (!random_ltd::check(rows, "token_gather")) return;
  on_device("ds::token_gather", cuda,
            [&](void* stream) { random_ltd_cuda::copy(rows, false, stream); });
}

void token_scatter(const TokenRows& rows, const CudaOptions& cuda) {
  if (!random_ltd::check(rows, "token_scatter")) return;
  on_device("ds::token_scatter", cuda,
            [&](void* stream) { random_ltd_cuda::copy(rows, true, stream); });
}

void mask_gather(const MaskGather& gather, const CudaOptions& cuda) {
  if (!random_ltd::check(gather)) return;
  on_device("ds::mask_gather", cuda,
            [&](void* stream) { random_ltd_cuda::gather_masks(gather, stream); });
}

int random_ltd_cuda::self_test(const char* device, char* detail, unsigned long detail_size) {
  return cuda_self_test(device, detail, detail_size, "6 functions", ds::self_test);
}

}  // namespace ds

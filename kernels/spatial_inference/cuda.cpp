// The host code of the op on a GPU.

#include "cuda_host.cuh"
#include "launch.h"
#include "plan.h"
#include "self_test_cases.h"

namespace ds {
namespace {

bool at_16_bytes(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
}

void self_test(int device, Comparison& comparison) {
  spatial_inference::test_all_sums(comparison, [&](spatial_inference::Case& c) {
    const DeviceBuffer x(c.x), other(c.other), bias(c.bias), bias2(c.other_bias), out(c.out);
    SpatialInferenceSum sum = c.sum(x.data(), bias.data(), other.data(), bias2.data(), out.data());
    spatial_inference_add(sum, CudaOptions{device, nullptr});
    c.out = out.download(c.out.dtype(), sum.pixels * sum.channels);
  });
}

}  // namespace

void spatial_inference_add(const SpatialInferenceSum& sum, const CudaOptions& cuda) {
  if (!spatial_inference::check(sum)) return;
  const std::int64_t run = sum.dtype == DType::f32 ? 4 : 8;  // Elements in 16 bytes.
  const bool vector = at_16_bytes(sum.x) && at_16_bytes(sum.other) && at_16_bytes(sum.out);
  const bool vector_bias =
      sum.channels % run == 0 && at_16_bytes(sum.bias) && at_16_bytes(sum.other_bias);
  int device = cuda.device;
  if (device < 0) check_cuda(cudaGetDevice(&device), "while asking for the current CUDA device");
  const DeviceGuard guard(device);
  spatial_inference_cuda::launch(sum, Channels(static_cast<std::uint64_t>(sum.channels)), vector,
                                 vector_bias, cuda.stream);
  check_cuda(cudaGetLastError(), spatial_inference::kName);
}

int spatial_inference_cuda::self_test(const char* device, char* detail, unsigned long detail_size) {
  return cuda_self_test(device, detail, detail_size, "18 cases", ds::self_test);
}

}  // namespace ds

#include "spatial_inference.h"

#include <stdexcept>
#include <string>

#include "cuda_host.cuh"
#include "launch.h"
#include "reference.h"

namespace ds {
namespace {

constexpr const char* kName = "ds::spatial_inference_add";

bool at_16_bytes(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
}

// All three sums, with channels that fill whole accesses and that do not.
void self_test(int device, Comparison& comparison) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const std::int64_t channels : {32, 5}) {
      for (int terms = 1; terms <= 3; ++terms) {
        constexpr std::int64_t kPixels = 301;
        const std::int64_t size = kPixels * channels;
        Buffer x(dtype, size), other(dtype, size), bias(dtype, channels), bias2(dtype, channels),
            out(dtype, size);
        Random random(3);
        for (Buffer* image : {&x, &other}) {
          for (std::int64_t i = 0; i < size; ++i) image->set(i, random.next());
        }
        for (Buffer* b : {&bias, &bias2}) {
          for (std::int64_t i = 0; i < channels; ++i) b->set(i, random.next());
        }
        const DeviceBuffer dx(x), dy(other), db(bias), db2(bias2), dout(out);
        spatial_inference_add(
            {dx.data(), db.data(), terms > 1 ? dy.data() : nullptr,
             terms > 2 ? db2.data() : nullptr, dout.data(), kPixels, channels, dtype},
            {device, nullptr});
        const Buffer got = dout.download(dtype, size);
        for (std::int64_t i = 0; i < size; ++i) {
          comparison.check("out", i, got,
                           spatial_inference_reference(x.get(i), bias.get(i % channels),
                                                       terms > 1 ? other.get(i) : 0.0,
                                                       terms > 2 ? bias2.get(i % channels) : 0.0));
        }
        if (!got.guard_is_intact()) comparison.fail("wrote behind the last element");
      }
    }
  }
}

}  // namespace

void spatial_inference_add(const SpatialInferenceSum& sum, const CudaOptions& cuda) {
  const auto refuse = [](const std::string& what) {
    throw std::invalid_argument(std::string(kName) + ": " + what);
  };
  if (sum.dtype > DType::bf16) refuse("unknown dtype");
  if (sum.pixels < 0 || sum.channels < 0) refuse("a size is negative");
  if (sum.other_bias != nullptr && sum.other == nullptr) {
    refuse("other_bias stands without other");
  }
  if (sum.pixels == 0 || sum.channels == 0) return;
  if (sum.channels > (std::int64_t{1} << 40) / sum.pixels) refuse("more than 2^40 elements");
  for (const void* data : {sum.x, sum.bias, static_cast<const void*>(sum.out)}) {
    if (data == nullptr) refuse("x, bias or out is null");
  }
  for (const void* data :
       {sum.x, sum.bias, sum.other, sum.other_bias, static_cast<const void*>(sum.out)}) {
    if (reinterpret_cast<std::uintptr_t>(data) % (sum.dtype == DType::f32 ? 4 : 2) != 0) {
      refuse("a pointer is not aligned to its elements");
    }
  }
  const std::int64_t run = sum.dtype == DType::f32 ? 4 : 8;  // Elements in 16 bytes.
  const bool vector = at_16_bytes(sum.x) && at_16_bytes(sum.other) && at_16_bytes(sum.out);
  const bool vector_bias =
      sum.channels % run == 0 && at_16_bytes(sum.bias) && at_16_bytes(sum.other_bias);
  int device = cuda.device;
  if (device < 0) check_cuda(cudaGetDevice(&device), "while asking for the current CUDA device");
  const DeviceGuard guard(device);
  spatial_inference_cuda::launch(sum, Channels(static_cast<std::uint64_t>(sum.channels)), vector,
                                 vector_bias, cuda.stream);
  check_cuda(cudaGetLastError(), kName);
}

}  // namespace ds

int ds_self_test_spatial_inference(const char* device, char* detail, unsigned long detail_size) {
  return ds::cuda_self_test(device, detail, detail_size, "18 cases", ds::self_test);
}

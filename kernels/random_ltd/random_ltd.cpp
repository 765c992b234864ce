#include "random_ltd.h"

#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "cuda_host.cuh"
#include "launch.h"
#include "plan.h"
#include "reference.h"

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

// Memory on the device with a copy of the host's vector.
template <class T>
class OnDeviceFor {
 public:
  explicit OnDeviceFor(const std::vector<T>& host)
      : size_(host.size()), memory_(host.size() * sizeof(T)) {
    check_cuda(cudaMemcpy(memory_.data(), host.data(), memory_.size(), cudaMemcpyHostToDevice),
               "while copying to the device");
  }
  T* data() const { return static_cast<T*>(memory_.data()); }
  std::vector<T> host() const {
    std::vector<T> to(size_);
    check_cuda(cudaMemcpy(to.data(), memory_.data(), memory_.size(), cudaMemcpyDeviceToHost),
               "while copying from the device");
    return to;
  }

 private:
  std::size_t size_;
  DeviceMemory memory_;
};

template <class T>
std::vector<T> numbered(std::int64_t size) {
  std::vector<T> values(static_cast<std::size_t>(size));
  std::iota(values.begin(), values.end(), T{1});
  return values;
}

// Ids of `rows` rows, distinct in each, in no order.
std::vector<std::int32_t> some_ids(std::int64_t rows, std::int64_t size, std::int64_t tokens) {
  std::vector<std::int32_t> ids;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = 0; i < size; ++i) {
      // 7 has no divisor in common with the number of tokens below.
      ids.push_back(static_cast<std::int32_t>((i * 7 + row * 3) % tokens));
    }
  }
  return ids;
}

template <class T>
void compare(const char* what, const std::vector<T>& got, const std::vector<T>& want,
             Comparison& comparison) {
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (got[i] == want[i]) continue;
    comparison.fail(std::string(what) + "[" + std::to_string(i) + "] is " + std::to_string(got[i]) +
                    ", should be " + std::to_string(want[i]));
    return;
  }
}

void self_test(int device, Comparison& comparison) {
  constexpr std::int64_t kBatch = 3, kTokens = 1000, kKept = 400, kChannels = 24, kLayers = 2;
  const CudaOptions cuda{device, nullptr};
  const std::vector<std::int32_t> ids = some_ids(kLayers * kBatch, kKept, kTokens);
  std::vector<std::int32_t> sorted(ids.size());
  const OnDeviceFor<std::int32_t> device_ids(ids), device_sorted(sorted);
  token_sort({device_ids.data(), device_sorted.data(), kLayers * kBatch, kKept, kTokens}, cuda);
  reference::token_sort({ids.data(), sorted.data(), kLayers * kBatch, kKept, kTokens});
  compare("token_sort", device_sorted.host(), sorted, comparison);

  const std::vector<std::uint16_t> rows = numbered<std::uint16_t>(kBatch * kTokens * kChannels);
  for (const bool batch_first : {true, false}) {
    std::vector<std::uint16_t> all = rows;
    std::vector<std::uint16_t> kept(static_cast<std::size_t>(kBatch * kKept * kChannels));
    const OnDeviceFor<std::uint16_t> device_all(all), device_kept(kept);
    constexpr std::int64_t kRow = kChannels * 2;
    TokenRows call{all.data(),
                   kept.data(),
                   sorted.data(),
                   kBatch,
                   kTokens,
                   kKept,
                   kRow,
                   batch_first ? kTokens * kRow : kRow,
                   batch_first ? kRow : kBatch * kRow,
                   batch_first ? kKept * kRow : kRow,
                   batch_first ? kRow : kBatch * kRow};
    TokenRows on_gpu = call;
    on_gpu.all = device_all.data();
    on_gpu.kept_rows = device_kept.data();
    on_gpu.indices = device_sorted.data();
    token_gather(on_gpu, cuda);
    reference::token_gather(call);
    compare("token_gather", device_kept.host(), kept, comparison);
    // Back to other places.
    call.indices = sorted.data() + kBatch * kKept;
    on_gpu.indices = device_sorted.data() + kBatch * kKept;
    token_scatter(on_gpu, cuda);
    reference::token_scatter(call);
    compare("token_scatter", device_all.host(), all, comparison);
  }

  const std::vector<std::uint16_t> mask = numbered<std::uint16_t>(kBatch * kTokens * kTokens);
  std::vector<std::uint16_t> masks(static_cast<std::size_t>(kLayers * kBatch * kKept * kKept));
  const OnDeviceFor<std::uint16_t> device_mask(mask), device_masks(masks);
  mask_gather({device_mask.data(), device_sorted.data(), device_masks.data(), kLayers, kBatch,
               kTokens, kKept, 2},
              cuda);
  reference::mask_gather(
      {mask.data(), sorted.data(), masks.data(), kLayers, kBatch, kTokens, kKept, 2});
  compare("mask_gather", device_masks.host(), masks, comparison);
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

}  // namespace ds

int ds_self_test_random_ltd(const char* device, char* detail, unsigned long detail_size) {
  return ds::cuda_self_test(device, detail, detail_size, "6 functions", ds::self_test);
}

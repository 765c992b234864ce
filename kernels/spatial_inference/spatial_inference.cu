// Each thread adds four runs of 16 bytes; a block's 1024 runs lie together, and blocks go through
// the images in order. Traffic: every image once; the biases stay in the first cache. Bound by
// memory.

#include "cuda_vector.cuh"
#include "launch.h"

namespace ds::spatial_inference_cuda {

constexpr int kThreads = 256;
constexpr int kRuns = 4;  // A thread. With one 1.11 times the copy, with two 1.08, with four 1.05.

template <class T, int N>
struct Loaded {
  Run<T, N> x, other;
};

template <class T, int N>
__device__ __forceinline__ void add_biases(const SpatialInferenceSum& sum, const Channels& channels,
                                           bool vector_bias, std::int64_t at, Loaded<T, N>& run) {
  const auto* bias = static_cast<const T*>(sum.bias);
  const auto* other_bias = static_cast<const T*>(sum.other_bias);
  std::uint64_t channel = channels.of(static_cast<std::uint64_t>(at));
  Run<T, N> b, b2;
  if (vector_bias) {
    b.load(bias + channel);
    if (other_bias != nullptr) b2.load(other_bias + channel);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      b.at[i] = bias[channel];
      if (other_bias != nullptr) b2.at[i] = other_bias[channel];
      if (++channel == channels.count) channel = 0;
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) {
    float value = widen(run.x.at[i]) + widen(b.at[i]);
    if (sum.other != nullptr) {
      float second = widen(run.other.at[i]);
      if (other_bias != nullptr) second = second + widen(b2.at[i]);
      value = value + second;
    }
    run.x.at[i] = narrow<T>(value);
  }
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    add(SpatialInferenceSum sum, Channels channels, bool vector_bias) {
  const std::int64_t size = sum.pixels * sum.channels;
  const std::int64_t begin =
      (static_cast<std::int64_t>(blockIdx.x) * kThreads * kRuns + threadIdx.x) * N;
  const auto* x = static_cast<const T*>(sum.x);
  const auto* other = static_cast<const T*>(sum.other);
  auto* out = static_cast<T*>(sum.out);
  Loaded<T, N> runs[kRuns];
#pragma unroll
  for (int r = 0; r < kRuns; ++r) {
    const std::int64_t at = begin + r * kThreads * N;
    if (at + N > size) continue;
    runs[r].x.load(x + at);
    if (other != nullptr) runs[r].other.load(other + at);
  }
#pragma unroll
  for (int r = 0; r < kRuns; ++r) {
    const std::int64_t at = begin + r * kThreads * N;
    if (at + N <= size) {
      add_biases(sum, channels, vector_bias, at, runs[r]);
      runs[r].x.store(out + at);
    } else if constexpr (N > 1) {
      for (std::int64_t i = at; i < size;
           ++i) {  // The last elements, at most N - 1, of one thread.
        Loaded<T, 1> one;
        one.x.at[0] = x[i];
        if (other != nullptr) one.other.at[0] = other[i];
        add_biases(sum, channels, false, i, one);
        out[i] = one.x.at[0];
      }
    }
  }
}

template <class T>
void launch_typed(const SpatialInferenceSum& sum, const Channels& channels, bool vector,
                  bool vector_bias, cudaStream_t stream) {
  constexpr int N = 16 / sizeof(T);
  const std::int64_t block = kThreads * kRuns * (vector ? N : 1);
  const auto blocks = static_cast<unsigned>((sum.pixels * sum.channels + block - 1) / block);
  if (vector) {
    add<T, N><<<blocks, kThreads, 0, stream>>>(sum, channels, vector_bias);
  } else {
    add<T, 1><<<blocks, kThreads, 0, stream>>>(sum, channels, false);
  }
}

void launch(const SpatialInferenceSum& sum, const Channels& channels, bool vector, bool vector_bias,
            void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  if (sum.dtype == DType::f32) launch_typed<float>(sum, channels, vector, vector_bias, on);
  if (sum.dtype == DType::f16) launch_typed<f16>(sum, channels, vector, vector_bias, on);
  if (sum.dtype == DType::bf16) launch_typed<bf16>(sum, channels, vector, vector_bias, on);
}

}  // namespace ds::spatial_inference_cuda

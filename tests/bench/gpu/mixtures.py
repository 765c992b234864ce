#!/usr/bin/env python3
"""What memory gives to a kernel that does nothing but move bytes, by how many it reads for each that it
writes: bench.py's floor is that of a copy, which reads as much as it writes.

  tests/bench/gpu/mixtures.py     needs torch, nvcc and ninja; writes a table

A thread reads words of one width and writes as many of another, neighbours beside each other, with
one, two or four in flight; the best of the three counts.
"""

import statistics

import torch
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <ATen/cuda/CUDAContext.h>
#include <torch/extension.h>

template <class R> __device__ unsigned fold(R r);
template <> __device__ unsigned fold(unsigned short r) { return r; }
template <> __device__ unsigned fold(unsigned r) { return r; }
template <> __device__ unsigned fold(uint2 r) { return r.x ^ r.y; }
template <> __device__ unsigned fold(uint4 r) { return r.x ^ r.y ^ r.z ^ r.w; }
template <class W> __device__ W spread(unsigned x);
template <> __device__ unsigned short spread(unsigned x) { return x; }
template <> __device__ unsigned spread(unsigned x) { return x; }
template <> __device__ uint2 spread(unsigned x) { return {x, x}; }
template <> __device__ uint4 spread(unsigned x) { return {x, x, x, x}; }

template <class R, class W, int N>
__global__ void __launch_bounds__(256) move(const R* from, W* to) {
  const long at = long(blockIdx.x) * 256 * N + threadIdx.x;
  R r[N];
#pragma unroll
  for (int i = 0; i < N; ++i) r[i] = from[at + i * 256];
#pragma unroll
  for (int i = 0; i < N; ++i) to[at + i * 256] = spread<W>(fold(r[i]));
}

template <class R, class W>
void moved(const torch::Tensor& from, torch::Tensor& to, int64_t n) {
  const long blocks = std::min(from.nbytes() / sizeof(R), to.nbytes() / sizeof(W)) / (256 * n);
  const auto stream = at::cuda::getCurrentCUDAStream();
  const auto run = [&](auto kernel) {
    kernel<<<blocks, 256, 0, stream>>>(static_cast<const R*>(from.data_ptr()),
                                       static_cast<W*>(to.data_ptr()));
  };
  if (n == 1) run(move<R, W, 1>);
  if (n == 2) run(move<R, W, 2>);
  if (n == 4) run(move<R, W, 4>);
}

void move_words(torch::Tensor from, torch::Tensor to, int64_t r, int64_t w, int64_t n) {
  if (r == 16 && w == 16) moved<uint4, uint4>(from, to, n);
  if (r == 16 && w == 8) moved<uint4, uint2>(from, to, n);
  if (r == 16 && w == 4) moved<uint4, unsigned>(from, to, n);
  if (r == 8 && w == 16) moved<uint2, uint4>(from, to, n);
  if (r == 4 && w == 16) moved<unsigned, uint4>(from, to, n);
  if (r == 2 && w == 16) moved<unsigned short, uint4>(from, to, n);
}
"""


def milliseconds(call, runs=15):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    for run in range(runs + 2):
        torch.cuda._sleep(1_000_000)
        start.record()
        call(run)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times[2:])


def main():
    module = load_inline("ds_mixtures", cpp_sources="void move_words(torch::Tensor from, "
                         "torch::Tensor to, int64_t r, int64_t w, int64_t n);",
                         cuda_sources=SOURCE, functions=["move_words"])
    whole = 1 << 30
    large = [torch.randint(-128, 127, (whole,), dtype=torch.int8, device="cuda") for _ in range(3)]
    to = torch.empty_like(large[0])
    copy = 2 * whole / milliseconds(lambda run: to.copy_(large[run % 3]))
    print(f"{torch.cuda.get_device_name()}; torch's copy {copy / 1e9:.3f} TB/s\n")
    print("| bytes read : written | TB/s | x the time of a copy |\n|---|---|---|")
    for r, w in ((16, 16), (16, 8), (16, 4), (8, 16), (4, 16), (2, 16)):
        reads, writes = whole * r // max(r, w), whole * w // max(r, w)
        sources = [x[:reads] for x in large]
        best = max((reads + writes) / milliseconds(
            lambda run: module.move_words(sources[run % 3], to[:writes], r, w, n))
            for n in (1, 2, 4))
        print(f"| {r} : {w} | {best / 1e9:.3f} | {copy / best:.3f} |", flush=True)


if __name__ == "__main__":
    main()

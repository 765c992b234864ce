#pragma once

// A list of tensors on the host and the same on a device, for tests of optimizers on a GPU. Each
// run of elements starts `offset` elements into its memory; what lies around it must stay as it is.

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "cuda_host.cuh"
#include "cuda_work_list.h"
#include "self_test.h"

namespace ds {

struct ProblemTypes {
  DType param, grad, state;
};

inline std::vector<ProblemTypes> all_problem_types() {
  std::vector<ProblemTypes> all;
  for (const OptimizerTypes& t : all_optimizer_types()) all.push_back({t.param, t.grad, t.state});
  for (const DType state : {DType::f16, DType::bf16}) {
    for (const DType grad : {DType::f32, state}) all.push_back({DType::f32, grad, state});
  }
  return all;
}

class HostAndDevice {
 public:
  HostAndDevice(DType dtype, std::int64_t size, int offset)
      : host(dtype, size + offset), size_(size), offset_(offset), device_(host) {}

  void set(std::int64_t i, double value) { host.set(i + offset_, value); }
  double get(std::int64_t i) const { return host.get(i + offset_); }
  void upload() { device_.upload(host); }
  void* at() const {
    return static_cast<char*>(device_.data()) + offset_ * dtype_size(host.dtype());
  }
  // The run by itself, as the device has it; checks what lies around.
  Buffer result() const {
    const Buffer all = device_.download(host.dtype(), size_ + offset_);
    EXPECT_TRUE(all.guard_is_intact()) << "wrote behind the last element";
    for (std::int64_t i = 0; i < offset_; ++i) EXPECT_EQ(all.get(i), host.get(i));
    Buffer run(host.dtype(), size_);
    for (std::int64_t i = 0; i < size_; ++i) run.set(i, all.get(i + offset_));
    return run;
  }
  Buffer before() const {
    Buffer run(host.dtype(), size_);
    for (std::int64_t i = 0; i < size_; ++i) run.set(i, get(i));
    return run;
  }

  Buffer host;

 private:
  std::int64_t size_;
  int offset_;
  DeviceBuffer device_;
};

// One parameter and what belongs to it, filled with random numbers; the copy with rubbish.
struct ProblemTensor {
  ProblemTensor(ProblemTypes t, DType copy_type, std::int64_t n, int offset, std::uint64_t seed,
                int grad_offset = -1)
      : types(t),
        size(n),
        p(t.param, n, offset),
        g(t.grad, n, grad_offset < 0 ? offset : grad_offset),
        m(t.state, n, offset),
        v(t.state, n, offset),
        copy(copy_type, n, offset) {
    Random random(seed);
    for (std::int64_t i = 0; i < n; ++i) {
      p.set(i, random.next());
      g.set(i, i % 13 == 5 ? 0.0 : random.next());
      m.set(i, 0.1 * random.next());
      v.set(i, std::fabs(0.01 * random.next()));
    }
    for (HostAndDevice* run : {&p, &g, &m, &v}) run->upload();
  }

  ProblemTypes types;
  std::int64_t size;
  HostAndDevice p, g, m, v, copy;
};

using Problem = std::vector<std::unique_ptr<ProblemTensor>>;

// Every size at every offset: aligned, with a head, with a gradient that is askew to the rest.
inline Problem make_problem(ProblemTypes types, DType copy_type = DType::bf16) {
  Problem problem;
  std::uint64_t seed = 1;
  for (const std::int64_t size : {0, 1, 31, 32, 33, 255, 2047, 2048, 2049, 2063, 5000, 9001}) {
    for (const int offset : {0, 1, 4}) {
      problem.push_back(std::make_unique<ProblemTensor>(types, copy_type, size, offset, ++seed));
    }
    problem.push_back(std::make_unique<ProblemTensor>(types, copy_type, size, 0, ++seed, 1));
  }
  return problem;
}

inline bool have_device() {
  int count = 0;
  const bool have = cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
  cudaGetLastError();
  return have;
}

#define DS_NEEDS_DEVICE() \
  if (!have_device()) GTEST_SKIP() << "no CUDA device"

}  // namespace ds

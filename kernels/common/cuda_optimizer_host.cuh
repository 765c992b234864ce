#pragma once

// The host's side of an element-wise optimizer on a GPU: checks, the cached work list, the
// launches.

#include <memory>
#include <utility>
#include <vector>

#include "cuda_work_cache.cuh"
#include "cuda_work_list.h"
#include "optimizer_case.h"
#include "optimizer_factors.h"

namespace ds {

struct WorkOnDevice {
  std::vector<WorkGroup> groups;
  std::vector<std::uint32_t> item_rows;  // What `items` holds.
  std::shared_ptr<DeviceMemory> rows, items;
  DeviceMemory factors;  // Written by the device before each launch that needs it.
};

struct WorkKey {
  std::vector<WorkTensor> tensors;
  friend bool operator==(const WorkKey& a, const WorkKey& b) {
    return same_list(a.tensors, b.tensors);
  }
};

using OptimizerCache = WorkCache<WorkKey, WorkOnDevice>;

inline bool any(const OptimizerScalars& s) {
  return s.step != nullptr || s.lr != nullptr || s.grad_scale != nullptr ||
         s.grad_norm != nullptr || s.found_inf != nullptr;
}

// The gradients' addresses may change from step to step, their sizes seldom do: then the items,
// which are most of the list, are kept.
inline std::unique_ptr<WorkOnDevice> work_on_device(const WorkKey& key, const WorkOnDevice* similar,
                                                    const OptimizerNames& names,
                                                    std::size_t factors_size) {
  check_work(key.tensors, names);
  WorkList list = make_work_list(key.tensors, names.function);
  auto work = std::make_unique<WorkOnDevice>();
  work->rows =
      std::make_shared<DeviceMemory>(upload(list.rows.data(), list.rows.size() * sizeof(WorkRow)));
  if (similar != nullptr && similar->item_rows == list.items) {
    work->items = similar->items;
  } else {
    work->items = std::make_shared<DeviceMemory>(
        upload(list.items.data(), list.items.size() * sizeof(std::uint32_t)));
  }
  work->item_rows = std::move(list.items);
  work->groups = std::move(list.groups);
  work->factors = DeviceMemory(factors_size);
  return work;
}

// `prepare(factors, stream)` launches what writes the factors from the scalars on the device;
// `launch(group, rows, items, factors or null, stream)` launches the step of one group.
template <class Prepare, class Launch>
void run_cuda_optimizer(OptimizerCache& cache, std::vector<WorkTensor> tensors,
                        const OptimizerNames& names, const OptimizerScalars& scalars,
                        std::size_t factors_size, const CudaOptions& cuda, const Prepare& prepare,
                        const Launch& launch) {
  int device = cuda.device;
  if (device < 0) check_cuda(cudaGetDevice(&device), "while asking for the current CUDA device");
  const DeviceGuard guard(device);
  const auto stream = static_cast<cudaStream_t>(cuda.stream);
  cache.run(
      device, stream, WorkKey{std::move(tensors)},
      [&](const WorkKey& key, const WorkOnDevice* similar) {
        return work_on_device(key, similar, names, factors_size);
      },
      [&](const WorkOnDevice& work) {
        void* factors = nullptr;
        if (any(scalars)) {
          factors = work.factors.data();
          prepare(factors, stream);
          check_cuda(cudaGetLastError(), names.function);
        }
        for (const WorkGroup& group : work.groups) {
          launch(group, static_cast<const WorkRow*>(work.rows->data()),
                 static_cast<const std::uint32_t*>(work.items->data()), factors, stream);
          check_cuda(cudaGetLastError(), names.function);
        }
      });
}

// Op: one optimizer's types Tensor, Options, Factors, its `kNames`, `check_options`, `prepare` and
// `launch` (see its launch.h), and `work_of(tensor)`.
template <class Op>
void cuda_optimizer_step(const typename Op::Tensor* tensors, std::size_t count,
                         const typename Op::Options& options, const GradientOptions& gradients,
                         const OptimizerScalars& scalars, const CudaOptions& cuda) {
  // Never destroyed: at the end of a process the driver may be gone before its user.
  static auto* const cache = new OptimizerCache;
  using Factors = typename Op::Factors;
  Op::check_options(options);
  check_gradients(Op::kNames.function, gradients, scalars);
  std::vector<WorkTensor> list;
  list.reserve(count);
  for (std::size_t i = 0; i < count; ++i) list.push_back(Op::work_of(tensors[i]));
  Factors given = factors_of(options);
  given.grad_multiplier = static_cast<float>(1.0 / gradients.scale);
  run_cuda_optimizer(
      *cache, std::move(list), Op::kNames, scalars, sizeof(Factors), cuda,
      [&](void* factors, cudaStream_t stream) {
        Op::prepare(options, gradients, scalars, static_cast<Factors*>(factors), stream);
      },
      [&](const WorkGroup& group, const WorkRow* rows, const std::uint32_t* items, void* factors,
          cudaStream_t stream) {
        Op::launch(group, rows, items, given, static_cast<const Factors*>(factors), stream);
      });
}

// A case of the self-test in device memory.
struct OptimizerCaseOnDevice {
  explicit OptimizerCaseOnDevice(const OptimizerCase& c)
      : p(c.p), g(c.g), m(c.m), v(c.v), copy(c.copy), ratio(c.ratio) {}
  void download_to(OptimizerCase& c) const {
    c.p = p.download(c.types.param, c.size);
    c.m = m.download(c.types.state, c.size);
    c.v = v.download(c.types.state, c.size);
    c.copy = copy.download(c.copy.dtype(), c.size);
    c.ratio = ratio.download(DType::f32, 1);
  }
  DeviceBuffer p, g, m, v, copy, ratio;
};

}  // namespace ds

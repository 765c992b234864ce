#pragma once

// What the torch bindings of ops with code for the CPU and for CUDA share: one function for both,
// the core's overload is chosen by where the tensor is. A build without CUDA (no DS_WITH_CUDA)
// knows the CPU alone.

#ifdef DS_WITH_CUDA
#include "bind_torch_cuda.cuh"
#else
#include "bind_torch.h"
#endif

namespace ds::binding {

// Calls run(options) with the CudaOptions or the CpuOptions of the tensor's device; the dispatch
// keys that the op registers let no other device through.
template <class Run>
auto on_device_of([[maybe_unused]] const at::Tensor& tensor, const Run& run) {
#ifdef DS_WITH_CUDA
  if (tensor.is_cuda()) {
    return run(CudaOptions{tensor.device().index(), current_stream(tensor.device())});
  }
#endif
  return run(cpu_options());
}

}  // namespace ds::binding

// TORCH_LIBRARY_IMPL for each device that the build has code for: `implement` is a function of the
// library. It stands outside of any namespace, once in a file.
#ifdef DS_WITH_CUDA
#define DS_LIBRARY_IMPL_FOR_DEVICES(implement) \
  TORCH_LIBRARY_IMPL(ds, CPU, m) {             \
    implement(m);                              \
  }                                            \
  TORCH_LIBRARY_IMPL(ds, CUDA, m) {            \
    implement(m);                              \
  }
#else
#define DS_LIBRARY_IMPL_FOR_DEVICES(implement) \
  TORCH_LIBRARY_IMPL(ds, CPU, m) {             \
    implement(m);                              \
  }
#endif

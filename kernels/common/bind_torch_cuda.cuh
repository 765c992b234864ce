#pragma once

// What the torch bindings of the CUDA ops share, beside bind_torch.h: the device and the stream of
// a call. The core chooses the device itself, so no guard of torch's is needed here.

#include <c10/cuda/CUDAStream.h>

#include "bind_torch.h"

namespace ds::binding {

// The stream that torch would launch on now, as the core takes it.
inline void* current_stream(const at::Device& device) {
  return c10::cuda::getCurrentCUDAStream(device.index()).stream();
}

// After check_lists, which compares the other lists with the parameters. False for an empty list.
inline bool on_one_cuda_device(const char* function, at::TensorList params) {
  for (std::size_t i = 0; i < params.size(); ++i) {
    TORCH_CHECK(params[i].device().is_cuda(), function, ": params[", i, "] is on ",
                params[i].device(), "; this op computes on CUDA devices");
    TORCH_CHECK(params[i].device() == params[0].device(), function, ": params[", i, "] is on ",
                params[i].device(), " and params[0] on ", params[0].device(),
                "; one call is for one device");
  }
  return params.size() > 0;
}

// A tensor that may be left out: on the device, of the type, one element. Null if it is left out.
template <class T>
const T* optional_scalar(const char* function, const char* name,
                         const c10::optional<at::Tensor>& tensor, at::ScalarType type,
                         const at::Device& device) {
  if (!tensor.has_value() || !tensor->defined()) return nullptr;
  TORCH_CHECK(tensor->device() == device, function, ": ", name, " is on ", tensor->device(),
              ", the parameters are on ", device);
  TORCH_CHECK(tensor->scalar_type() == type && tensor->numel() == 1, function, ": ", name,
              " must be one element of ", type, "; it is ", describe(*tensor));
  return static_cast<const T*>(tensor->data_ptr());
}

}  // namespace ds::binding

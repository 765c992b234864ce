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

}  // namespace ds::binding

#pragma once

// What the torch bindings of the ops that work in groups share: tensors as plain memory or an error
// that says which argument is wrong and how, and where randomness comes from.

#include <cstdint>

#include "bind_devices.h"
#include "philox.h"
#ifdef DS_WITH_CUDA
#include "cuda_host.cuh"
#endif

namespace ds::binding {

inline bool is_floating(const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  return type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
}

// The number of elements in each of `groups` groups.
inline std::int64_t group_size_of(const char* function, const char* name, std::int64_t size,
                                  std::int64_t groups) {
  TORCH_CHECK(groups > 0 || (groups == 0 && size == 0), function,
              ": the number of groups must be positive, it is ", groups);
  if (groups == 0) return 0;
  TORCH_CHECK(size % groups == 0, function, ": ", name, " has ", size,
              " elements, which do not make ", groups, " groups of equal size");
  return size / groups;
}

// Dense numbers of f32, f16 or bf16.
inline void check_floating(const char* function, const char* name, const at::Tensor& tensor) {
  TORCH_CHECK(tensor.layout() == c10::kStrided && is_floating(tensor), function, ": ", name,
              " must be a dense tensor of float32, float16 or bfloat16: ", describe(tensor));
}

// A tensor that is written where it is.
inline void check_in_place(const char* function, const char* name, const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_contiguous(), function, ": ", name,
              " is not contiguous, so it cannot be updated in place: ", describe(tensor));
}

inline void check_size(const char* function, const char* name, const at::Tensor& tensor,
                       at::ScalarType type, std::int64_t size) {
  TORCH_CHECK(tensor.scalar_type() == type && tensor.numel() == size, function, ": ", name,
              " must be ", size, " elements of ", type, "; it is ", describe(tensor));
}

inline void check_same_device(const char* function, const char* name, const at::Tensor& tensor,
                              const at::Tensor& first) {
  TORCH_CHECK(tensor.device() == first.device(), function, ": ", name, " is on ", tensor.device(),
              ", the other tensors on ", first.device());
}

// Codes are kept as int8 or uint8, as the caller has them.
inline void check_bytes(const char* function, const char* name, const at::Tensor& tensor) {
  TORCH_CHECK(tensor.scalar_type() == at::kChar || tensor.scalar_type() == at::kByte, function,
              ": ", name, " must be int8 or uint8: ", describe(tensor));
}

inline RandomSource random_source(const char* function, std::int64_t seed, std::int64_t offset,
                                  const c10::optional<at::Tensor>& state, const at::Tensor& first) {
  RandomSource source{static_cast<std::uint64_t>(seed), static_cast<std::uint64_t>(offset),
                      nullptr};
  if (state.has_value() && state->defined()) {
    check_size(function, "random_state", *state, at::kLong, 2);
    check_same_device(function, "random_state", *state, first);
    check_in_place(function, "random_state", *state);
    source.device = static_cast<const std::uint64_t*>(state->data_ptr());
  }
  return source;
}

inline void changed(const at::Tensor& tensor) {
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

// Calls run(where) with what the core takes: on a GPU, made the current device, torch's current
// stream there; on the CPU, CpuOptions.
template <class Run>
void on_stream_of([[maybe_unused]] const at::Tensor& tensor, const Run& run) {
#ifdef DS_WITH_CUDA
  if (tensor.is_cuda()) {
    const DeviceGuard guard(tensor.device().index());
    return run(current_stream(tensor.device()));
  }
#endif
  run(cpu_options());
}

}  // namespace ds::binding

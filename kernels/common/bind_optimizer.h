#pragma once

// What the torch bindings of the optimizers share: lists of tensors on one device, copies in 16
// bits, and numbers that lie beside the parameters.

#include "bind_devices.h"

namespace ds::binding {

// As check_lists, and that every copy is laid out like its parameter; `copies` may be an empty
// list.
inline void check_step_lists(const char* function, const std::vector<List>& written,
                             const List& grads, const List& copies) {
  check_lists(function, written, grads);
  if (!copies.tensors.empty()) check_lists(function, {written[0], copies}, grads, false);
}

// After check_lists, which compares the other lists with the parameters. False for an empty list.
inline bool on_one_device(const char* function, at::TensorList params) {
  for (std::size_t i = 0; i < params.size(); ++i) {
    const at::Device device = params[i].device();
#ifdef DS_WITH_CUDA
    TORCH_CHECK(device.is_cpu() || device.is_cuda(), function, ": params[", i, "] is on ", device,
                "; this op computes on the CPU and on CUDA devices");
#else
    TORCH_CHECK(device.is_cpu(), function, ": params[", i, "] is on ", device,
                "; this op was built for the CPU alone");
#endif
    TORCH_CHECK(device == params[0].device(), function, ": params[", i, "] is on ", device,
                " and params[0] on ", params[0].device(), "; one call is for one device");
  }
  return params.size() > 0;
}

// A tensor that may be left out: on the device, of the type, one element. Null if it is left out.
template <class T>
T* optional_scalar(const char* function, const char* name, const c10::optional<at::Tensor>& tensor,
                   at::ScalarType type, const at::Device& device) {
  if (!tensor.has_value() || !tensor->defined()) return nullptr;
  TORCH_CHECK(tensor->device() == device, function, ": ", name, " is on ", tensor->device(),
              ", the parameters are on ", device);
  TORCH_CHECK(tensor->scalar_type() == type && tensor->numel() == 1, function, ": ", name,
              " must be one element of ", type, "; it is ", describe(*tensor));
  return static_cast<T*>(tensor->data_ptr());
}

// The numbers of a step in one tensor on the CPU: f64, contiguous, [count].
inline const double* packed_numbers(const char* function, const at::Tensor& numbers,
                                    std::int64_t count) {
  TORCH_CHECK(numbers.device().is_cpu() && numbers.scalar_type() == at::kDouble &&
                  numbers.is_contiguous() && numbers.numel() == count,
              function, ": numbers must be ", count, " contiguous elements of float64 on the CPU; ",
              "it is ", describe(numbers));
  return static_cast<const double*>(numbers.data_ptr());
}

inline OptimizerScalars optimizer_scalars(const char* function,
                                          const c10::optional<at::Tensor>& step,
                                          const c10::optional<at::Tensor>& lr,
                                          const c10::optional<at::Tensor>& grad_scale,
                                          const c10::optional<at::Tensor>& grad_norm,
                                          const c10::optional<at::Tensor>& found_inf,
                                          const at::Device& device) {
  const auto number = [&](const char* name, const c10::optional<at::Tensor>& tensor) {
    return optional_scalar<float>(function, name, tensor, at::kFloat, device);
  };
  OptimizerScalars scalars;
  scalars.step = optional_scalar<std::int64_t>(function, "step_on_device", step, at::kLong, device);
  scalars.lr = number("lr_on_device", lr);
  scalars.grad_scale = number("grad_scale_on_device", grad_scale);
  scalars.grad_norm = number("grad_norm", grad_norm);
  scalars.found_inf = number("found_inf", found_inf);
  return scalars;
}

}  // namespace ds::binding

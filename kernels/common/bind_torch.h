#pragma once

// What the torch bindings of the CPU optimizers share: from lists of tensors to lists of pointers,
// or an error that says which tensor of which list is wrong and how. Only torch/library.h and
// torch/types.h, so that any torch from 1.13 on will do.

#include <ATen/Parallel.h>
#include <torch/library.h>
#include <torch/types.h>

#include <sstream>
#include <string>
#include <vector>

#include "ds_types.h"

namespace ds::binding {

struct List {
  const char* name;
  at::TensorList tensors;
};

inline std::string describe(const at::Tensor& tensor) {
  std::ostringstream text;
  text << "shape " << tensor.sizes();
  if (tensor.layout() == c10::kStrided) text << ", strides " << tensor.strides();
  text << ", " << tensor.scalar_type() << " on " << tensor.device();
  return text.str();
}

inline DType dtype_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kHalf:
      return DType::f16;
    case at::kBFloat16:
      return DType::bf16;
    default:
      return DType::f32;  // check_lists let nothing else through.
  }
}

// `written[0]` are the parameters, which set the shapes; all of `written` must be dense and laid
// out alike, because the core walks them as plain memory: a copy would lose the update.
// Their states, `written[1]` and on, are f32 or of the parameters' type, of f32 parameters any,
// unless that is waived.
inline void check_lists(const char* function, const std::vector<List>& written, const List& grads,
                        bool states_match = true) {
  const List& params = written.front();
  const auto check_one = [&](const List& list, std::size_t i, bool is_written) {
    const at::Tensor& tensor = list.tensors[i];
    const at::Tensor& param = params.tensors[i];
    const auto where = [&] { return c10::str(function, ": ", list.name, "[", i, "]"); };
    TORCH_CHECK(tensor.defined(), where(), " is not a tensor (None)");
    TORCH_CHECK(tensor.layout() == c10::kStrided, where(), " is sparse (", describe(tensor),
                "); only dense tensors can be updated");
    TORCH_CHECK(tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kHalf ||
                    tensor.scalar_type() == at::kBFloat16,
                where(),
                " has a dtype that is not float32, float16 or bfloat16: ", describe(tensor));
    TORCH_CHECK(tensor.device() == param.device(), where(), " is on another device than params[", i,
                "]: ", describe(tensor), " and ", describe(param));
    TORCH_CHECK(tensor.sizes() == param.sizes(), where(), " has another shape than params[", i,
                "]: ", describe(tensor), " and ", describe(param));
    if (!is_written) return;
    TORCH_CHECK(!tensor.is_neg(), where(), " is a negated view; resolve_neg() it");
    // Of the same sizes they are laid out alike; most are, and of 10,000 it takes time to ask more.
    if (tensor.is_contiguous() && param.is_contiguous()) return;
    TORCH_CHECK(
        tensor.is_non_overlapping_and_dense(), where(),
        " is not contiguous in memory, so it cannot be updated in place: ", describe(tensor));
    // The strides of dimensions of size 1, and of empty tensors, mean nothing.
    for (std::int64_t d = 0; d < tensor.dim() && tensor.numel() > 0; ++d) {
      TORCH_CHECK(tensor.size(d) == 1 || tensor.stride(d) == param.stride(d), where(),
                  " is laid out in memory otherwise than params[", i, "]: ", describe(tensor),
                  " and ", describe(param));
    }
  };
  const auto check_length = [&](const List& list) {
    TORCH_CHECK(list.tensors.size() == params.tensors.size(), function, ": ", params.name, " has ",
                params.tensors.size(), " tensors and ", list.name, " has ", list.tensors.size());
  };
  for (const List& list : written) check_length(list);
  check_length(grads);
  for (std::size_t i = 0; i < params.tensors.size(); ++i) {
    for (const List& list : written) check_one(list, i, true);
    check_one(grads, i, false);
    if (written.size() > 1 && states_match && params.tensors[i].scalar_type() != at::kFloat) {
      const at::Tensor& state = written[1].tensors[i];
      TORCH_CHECK(state.scalar_type() == at::kFloat ||
                      state.scalar_type() == params.tensors[i].scalar_type(),
                  function, ": ", written[1].name, "[", i,
                  "] must be float32 or of its parameter's dtype: ", describe(state), " and ",
                  describe(params.tensors[i]));
    }
    for (std::size_t k = 2; k < written.size(); ++k) {
      TORCH_CHECK(written[k].tensors[i].scalar_type() == written[1].tensors[i].scalar_type(),
                  function, ": ", written[k].name, "[", i, "] and ", written[1].name, "[", i,
                  "] must have one dtype: ", describe(written[k].tensors[i]), " and ",
                  describe(written[1].tensors[i]));
    }
  }
}

// After check_lists, which compares the other lists with the parameters.
inline void check_on_cpu(const char* function, at::TensorList params) {
  for (std::size_t i = 0; i < params.size(); ++i) {
    TORCH_CHECK(params[i].device().is_cpu(), function, ": params[", i, "] is on ",
                params[i].device(), "; this op computes on the CPU");
  }
}

// The gradient in the parameter's order of memory. It is only read, so a copy is no loss.
inline at::Tensor grad_like(const at::Tensor& grad, const at::Tensor& param) {
  bool same = !grad.is_neg();
  if (same && grad.is_contiguous() && param.is_contiguous()) return grad;
  for (std::int64_t d = 0; d < grad.dim() && grad.numel() > 0; ++d) {
    same = same && (grad.size(d) == 1 || grad.stride(d) == param.stride(d));
  }
  if (same) return grad;
  at::Tensor copy = at::empty_strided(param.sizes(), param.strides(), grad.options());
  at::NoGradGuard no_grad;
  copy.copy_(grad);
  return copy;
}

// Tells autograd that a tensor changed: a backward pass that saved the old value must fail, not use
// the new one. The dispatcher does so only for torch's own ops.
inline void bump_versions(const std::vector<List>& written) {
  for (const List& list : written) {
    for (const at::Tensor& tensor : list.tensors) {
      if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
    }
  }
}

// torch.set_num_threads is what its users know; torch may also bring an OpenMP of its own.
inline CpuOptions cpu_options() {
  CpuOptions options;
  options.threads = at::get_num_threads();
  return options;
}

}  // namespace ds::binding

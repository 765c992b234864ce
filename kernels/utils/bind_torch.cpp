// torch.ops.ds.flatten, unflatten and byte_view.

#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>
#include <torch/types.h>

#include <algorithm>
#include <vector>

#include "utils.h"

namespace ds {
namespace {

void check_list(const char* function, at::TensorList tensors) {
  TORCH_CHECK(!tensors.empty(), function, ": the list is empty, so there is no dtype and device");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    TORCH_CHECK(tensors[i].defined(), function, ": tensors[", i, "] is not a tensor (None)");
    TORCH_CHECK(tensors[i].layout() == c10::kStrided, function, ": tensors[", i, "] is sparse");
    TORCH_CHECK(tensors[i].scalar_type() == tensors[0].scalar_type(), function, ": tensors[", i,
                "] is ", tensors[i].scalar_type(), " and tensors[0] is ", tensors[0].scalar_type());
    TORCH_CHECK(tensors[i].device() == tensors[0].device(), function, ": tensors[", i, "] is on ",
                tensors[i].device(), " and tensors[0] on ", tensors[0].device());
  }
}

// All elements, in order of the list and of each tensor's indices, as one new tensor. By torch's
// own operations: on any device, for autograd, and for tensors without memory (meta, fake).
at::Tensor flatten_by_torch(at::TensorList tensors) {
  check_list("ds::flatten", tensors);
  std::vector<at::Tensor> rows;
  rows.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) rows.push_back(tensor.reshape({-1}));
  return at::cat(rows);
}

at::Tensor flatten_cpu(at::TensorList tensors) {
  check_list("ds::flatten", tensors);
  if (!std::all_of(tensors.begin(), tensors.end(), [](const auto& t) {
        return t.is_contiguous() && !t.is_conj() && !t.is_neg();
      })) {
    return flatten_by_torch(tensors);
  }
  std::vector<UtilsPiece> pieces;
  pieces.reserve(tensors.size());
  std::int64_t total = 0;
  for (const at::Tensor& tensor : tensors) {
    const std::int64_t bytes = tensor.numel() * static_cast<std::int64_t>(tensor.element_size());
    pieces.push_back({bytes > 0 ? tensor.data_ptr() : nullptr, bytes});
    total += tensor.numel();
  }
  at::Tensor flat = at::empty({total}, tensors[0].options().requires_grad(false));
  utils_flatten(total > 0 ? flat.data_ptr() : nullptr, pieces.data(), pieces.size(),
                at::get_num_threads());
  return flat;
}

at::Tensor flatten_autograd(at::TensorList tensors) {
  if (at::GradMode::is_enabled() && std::any_of(tensors.begin(), tensors.end(),
                                                [](const auto& t) { return t.requires_grad(); })) {
    return flatten_by_torch(tensors);
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow("ds::flatten", "")
      .typed<at::Tensor(at::TensorList)>()
      .call(tensors);
}

// Views of `flat` with the shapes of `like`.
std::vector<at::Tensor> unflatten(const at::Tensor& flat, at::TensorList like) {
  TORCH_CHECK(flat.dim() == 1, "ds::unflatten: flat must have one dimension, it has ", flat.dim());
  std::int64_t total = 0;
  for (const at::Tensor& tensor : like) total += tensor.numel();
  TORCH_CHECK(total <= flat.numel(), "ds::unflatten: flat has ", flat.numel(),
              " elements and the shapes need ", total);
  std::vector<at::Tensor> views;
  views.reserve(like.size());
  std::int64_t at = 0;
  for (const at::Tensor& tensor : like) {
    views.push_back(flat.narrow(0, at, tensor.numel()).view(tensor.sizes()));
    at += tensor.numel();
  }
  return views;
}

// The memory of a contiguous tensor as uint8, in one dimension; a view.
at::Tensor byte_view(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.layout() == c10::kStrided && tensor.is_contiguous() && !tensor.is_conj() &&
                  !tensor.is_neg(),
              "ds::byte_view: the tensor's memory is not its values in order; make it contiguous");
  const at::NoGradGuard no_grad;
  return tensor.detach().view({-1}).view(at::kByte);
}

}  // namespace
}  // namespace ds

TORCH_LIBRARY_FRAGMENT(ds, m) {
  m.def("flatten(Tensor[] tensors) -> Tensor");
  m.def("unflatten(Tensor(a) flat, Tensor[] like) -> Tensor(a)[]", ds::unflatten);
  m.def("byte_view(Tensor(a) tensor) -> Tensor(a)", ds::byte_view);
}

TORCH_LIBRARY_IMPL(ds, CPU, m) {
  m.impl("flatten", TORCH_FN(ds::flatten_cpu));
}

// Every other device, fake tensors (which come here by the key Meta) and the empty list.
TORCH_LIBRARY_IMPL(ds, CompositeExplicitAutograd, m) {
  m.impl("flatten", TORCH_FN(ds::flatten_by_torch));
}

TORCH_LIBRARY_IMPL(ds, Autograd, m) {
  m.impl("flatten", TORCH_FN(ds::flatten_autograd));
}

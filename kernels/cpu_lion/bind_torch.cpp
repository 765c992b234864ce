// torch.ops.ds.cpu_lion_step; see cpu_lion.h for what it computes.

#include "bind_torch.h"

#include "cpu_lion.h"

namespace ds {
namespace {

constexpr const char* kName = "ds::cpu_lion_step";

void step_cpu(at::TensorList params, at::TensorList grads, at::TensorList exp_avgs, double lr,
              double beta1, double beta2, double weight_decay) {
  const std::vector<binding::List> written = {{"params", params}, {"exp_avgs", exp_avgs}};
  binding::check_lists(kName, written, {"grads", grads});
  binding::check_on_cpu(kName, params);
  std::vector<at::Tensor> owned_grads;
  std::vector<LionTensor> tensors;
  owned_grads.reserve(params.size());
  tensors.reserve(params.size());
  for (std::size_t i = 0; i < params.size(); ++i) {
    owned_grads.push_back(binding::grad_like(grads[i], params[i]));
    tensors.push_back({params[i].data_ptr(), owned_grads[i].data_ptr(), exp_avgs[i].data_ptr(),
                       params[i].numel(), binding::dtype_of(params[i]), binding::dtype_of(grads[i]),
                       binding::dtype_of(exp_avgs[i])});
  }
  cpu_lion_step(tensors.data(), tensors.size(), {lr, beta1, beta2, weight_decay},
                binding::cpu_options());
  binding::bump_versions(written);
}

void step_meta(at::TensorList params, at::TensorList grads, at::TensorList exp_avgs, double, double,
               double, double) {
  binding::check_lists(kName, {{"params", params}, {"exp_avgs", exp_avgs}}, {"grads", grads});
}

}  // namespace
}  // namespace ds

TORCH_LIBRARY_FRAGMENT(ds, m) {
  m.def(
      "cpu_lion_step(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, *, float lr, "
      "float beta1=0.9, float beta2=0.99, float weight_decay=0.0) -> ()");
}

// Not for the key CPU: an empty list has no device, and tensors of another device get an error that
// says so. The function checks both.
TORCH_LIBRARY_IMPL(ds, CompositeExplicitAutograd, m) {
  m.impl("cpu_lion_step", TORCH_FN(ds::step_cpu));
}

TORCH_LIBRARY_IMPL(ds, Meta, m) {
  m.impl("cpu_lion_step", TORCH_FN(ds::step_meta));
}

// torch 1.13 knows no way from here to Meta.
TORCH_LIBRARY_IMPL(ds, AutogradMeta, m) {
  m.impl("cpu_lion_step", torch::CppFunction::makeFallthrough());
}

// torch.ops.ds.cpu_adagrad_step; see cpu_adagrad.h for what it computes.

#include "bind_optimizer.h"

#include "cpu_adagrad.h"

namespace ds {
namespace {

constexpr const char* kName = "ds::cpu_adagrad_step";

using OptionalTensor = c10::optional<at::Tensor>;

void step_copies_cpu(at::TensorList params, at::TensorList grads, at::TensorList exp_avg_sqs,
                     at::TensorList copies, double lr, double eps, double weight_decay,
                     double grad_scale, double max_norm, const OptionalTensor& grad_norm,
                     const OptionalTensor& found_inf) {
  const std::vector<binding::List> written = {{"params", params}, {"exp_avg_sqs", exp_avg_sqs}};
  binding::check_step_lists(kName, written, {"grads", grads}, {"copies", copies});
  binding::check_on_cpu(kName, params);
  std::vector<at::Tensor> owned_grads;
  std::vector<AdagradTensor> tensors;
  owned_grads.reserve(params.size());
  tensors.reserve(params.size());
  for (std::size_t i = 0; i < params.size(); ++i) {
    owned_grads.push_back(binding::grad_like(grads[i], params[i]));
    tensors.push_back({params[i].data_ptr(), owned_grads[i].data_ptr(), exp_avg_sqs[i].data_ptr(),
                       params[i].numel(), binding::dtype_of(params[i]), binding::dtype_of(grads[i]),
                       binding::dtype_of(exp_avg_sqs[i])});
    if (copies.empty()) continue;
    tensors.back().copy = copies[i].data_ptr();
    tensors.back().copy_dtype = binding::dtype_of(copies[i]);
  }
  cpu_adagrad_step(tensors.data(), tensors.size(), {lr, eps, weight_decay}, binding::cpu_options(),
                   {grad_scale, max_norm},
                   binding::optimizer_scalars(kName, {}, {}, {}, grad_norm, found_inf, at::kCPU));
  binding::bump_versions(written);
  binding::bump_versions({{"copies", copies}});
}

void step_cpu(at::TensorList params, at::TensorList grads, at::TensorList exp_avg_sqs, double lr,
              double eps, double weight_decay) {
  step_copies_cpu(params, grads, exp_avg_sqs, {}, lr, eps, weight_decay, 1.0, 0.0, {}, {});
}

// For torch.compile and fake tensors: the same errors, no arithmetic.
void step_tensor_cpu(const at::Tensor& param, const at::Tensor& grad, const at::Tensor& exp_avg_sq,
                     const at::Tensor& numbers) {
  const double* n = binding::packed_numbers(kName, numbers, 3);
  step_cpu(param, grad, exp_avg_sq, n[0], n[1], n[2]);
}

void step_copies_meta(at::TensorList params, at::TensorList grads, at::TensorList exp_avg_sqs,
                      at::TensorList copies, double, double, double, double, double,
                      const OptionalTensor&, const OptionalTensor&) {
  binding::check_step_lists(kName, {{"params", params}, {"exp_avg_sqs", exp_avg_sqs}},
                            {"grads", grads}, {"copies", copies});
}

void step_meta(at::TensorList params, at::TensorList grads, at::TensorList exp_avg_sqs, double,
               double, double) {
  binding::check_lists(kName, {{"params", params}, {"exp_avg_sqs", exp_avg_sqs}}, {"grads", grads});
}

void step_tensor_meta(const at::Tensor& param, const at::Tensor& grad, const at::Tensor& exp_avg_sq,
                      const at::Tensor&) {
  step_meta(param, grad, exp_avg_sq, 0.0, 0.0, 0.0);
}

}  // namespace
}  // namespace ds

TORCH_LIBRARY_FRAGMENT(ds, m) {
  m.def(
      "cpu_adagrad_step(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avg_sqs, *, "
      "float lr, float eps=1e-10, float weight_decay=0.0) -> ()");
  m.def(
      "cpu_adagrad_step.copies(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avg_sqs, "
      "Tensor(c!)[] copies, *, float lr, float eps=1e-10, float weight_decay=0.0, float "
      "grad_scale=1.0, "
      "float max_norm=0.0, Tensor? grad_norm=None, Tensor? found_inf=None) -> ()");
  // A list of one without the lists and the numbers one by one, whose conversion takes longer than
  // a small tensor's step. Of `numbers`, f64 [3]: lr, eps, weight_decay.
  m.def(
      "cpu_adagrad_step.tensor(Tensor(a!) param, Tensor grad, Tensor(b!) exp_avg_sq, "
      "Tensor numbers) -> ()");
}

// Not for the key CPU: an empty list has no device, and tensors of another device get an error that
// says so. The function checks both.
TORCH_LIBRARY_IMPL(ds, CompositeExplicitAutograd, m) {
  m.impl("cpu_adagrad_step", TORCH_FN(ds::step_cpu));
  m.impl("cpu_adagrad_step.copies", TORCH_FN(ds::step_copies_cpu));
  m.impl("cpu_adagrad_step.tensor", TORCH_FN(ds::step_tensor_cpu));
}

TORCH_LIBRARY_IMPL(ds, Meta, m) {
  m.impl("cpu_adagrad_step", TORCH_FN(ds::step_meta));
  m.impl("cpu_adagrad_step.copies", TORCH_FN(ds::step_copies_meta));
  m.impl("cpu_adagrad_step.tensor", TORCH_FN(ds::step_tensor_meta));
}

// torch 1.13 knows no way from here to Meta.
TORCH_LIBRARY_IMPL(ds, AutogradMeta, m) {
  m.impl("cpu_adagrad_step", torch::CppFunction::makeFallthrough());
  m.impl("cpu_adagrad_step.copies", torch::CppFunction::makeFallthrough());
  m.impl("cpu_adagrad_step.tensor", torch::CppFunction::makeFallthrough());
}

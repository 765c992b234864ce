// torch.ops.ds.cpu_adam_step and cpu_adam_rollback; see cpu_adam.h for what they compute.

#include "bind_optimizer.h"

#include "cpu_adam.h"

namespace ds {
namespace {

using OptionalTensor = c10::optional<at::Tensor>;

std::vector<binding::List> written(at::TensorList params, at::TensorList exp_avgs,
                                   at::TensorList exp_avg_sqs) {
  return {{"params", params}, {"exp_avgs", exp_avgs}, {"exp_avg_sqs", exp_avg_sqs}};
}

// `call(tensors)` computes.
template <class Call>
void run(const char* name, at::TensorList params, at::TensorList grads, at::TensorList exp_avgs,
         at::TensorList exp_avg_sqs, at::TensorList copies, const Call& call) {
  const auto lists = written(params, exp_avgs, exp_avg_sqs);
  binding::check_step_lists(name, lists, {"grads", grads}, {"copies", copies});
  binding::check_on_cpu(name, params);
  std::vector<at::Tensor> owned_grads;
  std::vector<AdamTensor> tensors;
  owned_grads.reserve(params.size());
  tensors.reserve(params.size());
  for (std::size_t i = 0; i < params.size(); ++i) {
    owned_grads.push_back(binding::grad_like(grads[i], params[i]));
    tensors.push_back({params[i].data_ptr(), owned_grads[i].data_ptr(), exp_avgs[i].data_ptr(),
                       exp_avg_sqs[i].data_ptr(), params[i].numel(), binding::dtype_of(params[i]),
                       binding::dtype_of(grads[i]), binding::dtype_of(exp_avgs[i])});
    if (copies.empty()) continue;
    tensors.back().copy = copies[i].data_ptr();
    tensors.back().copy_dtype = binding::dtype_of(copies[i]);
  }
  call(tensors);
  binding::bump_versions(lists);
  binding::bump_versions({{"copies", copies}});
}

AdamOptions to_options(std::int64_t step, double lr, double beta1, double beta2, double eps,
                       double weight_decay, bool adamw, bool bias_correction) {
  return {step, lr, beta1, beta2, eps, weight_decay, adamw, bias_correction};
}

void step_cpu(at::TensorList params, at::TensorList grads, at::TensorList exp_avgs,
              at::TensorList exp_avg_sqs, std::int64_t step, double lr, double beta1, double beta2,
              double eps, double weight_decay, bool adamw, bool bias_correction) {
  run("ds::cpu_adam_step", params, grads, exp_avgs, exp_avg_sqs, {}, [&](const auto& tensors) {
    cpu_adam_step(tensors.data(), tensors.size(),
                  to_options(step, lr, beta1, beta2, eps, weight_decay, adamw, bias_correction),
                  binding::cpu_options());
  });
}

void step_copies_cpu(at::TensorList params, at::TensorList grads, at::TensorList exp_avgs,
                     at::TensorList exp_avg_sqs, at::TensorList copies, std::int64_t step,
                     double lr, double beta1, double beta2, double eps, double weight_decay,
                     bool adamw, bool bias_correction, double grad_scale, double max_norm,
                     const OptionalTensor& grad_norm, const OptionalTensor& found_inf) {
  constexpr const char* kName = "ds::cpu_adam_step";
  run(kName, params, grads, exp_avgs, exp_avg_sqs, copies, [&](const auto& tensors) {
    cpu_adam_step(tensors.data(), tensors.size(),
                  to_options(step, lr, beta1, beta2, eps, weight_decay, adamw, bias_correction),
                  binding::cpu_options(), {grad_scale, max_norm},
                  binding::optimizer_scalars(kName, {}, {}, {}, grad_norm, found_inf, at::kCPU));
  });
}

void step_tensor_cpu(const at::Tensor& param, const at::Tensor& grad, const at::Tensor& exp_avg,
                     const at::Tensor& exp_avg_sq, const at::Tensor& numbers) {
  const double* n = binding::packed_numbers("ds::cpu_adam_step", numbers, 8);
  step_cpu(param, grad, exp_avg, exp_avg_sq, static_cast<std::int64_t>(n[0]), n[1], n[2], n[3],
           n[4], n[5], n[6] != 0.0, n[7] != 0.0);
}

void rollback_cpu(at::TensorList params, at::TensorList grads, at::TensorList exp_avgs,
                  at::TensorList exp_avg_sqs, std::int64_t step, double lr, double beta1,
                  double beta2, double eps, double weight_decay, bool adamw, bool bias_correction) {
  run("ds::cpu_adam_rollback", params, grads, exp_avgs, exp_avg_sqs, {}, [&](const auto& tensors) {
    cpu_adam_rollback(tensors.data(), tensors.size(),
                      to_options(step, lr, beta1, beta2, eps, weight_decay, adamw, bias_correction),
                      binding::cpu_options());
  });
}

// For torch.compile and fake tensors: the same errors, no arithmetic.
void step_meta(at::TensorList params, at::TensorList grads, at::TensorList exp_avgs,
               at::TensorList exp_avg_sqs, std::int64_t, double, double, double, double, double,
               bool, bool) {
  binding::check_lists("ds::cpu_adam_step", written(params, exp_avgs, exp_avg_sqs),
                       {"grads", grads});
}

void step_copies_meta(at::TensorList params, at::TensorList grads, at::TensorList exp_avgs,
                      at::TensorList exp_avg_sqs, at::TensorList copies, std::int64_t, double,
                      double, double, double, double, bool, bool, double, double,
                      const OptionalTensor&, const OptionalTensor&) {
  binding::check_step_lists("ds::cpu_adam_step", written(params, exp_avgs, exp_avg_sqs),
                            {"grads", grads}, {"copies", copies});
}

void step_tensor_meta(const at::Tensor& param, const at::Tensor& grad, const at::Tensor& exp_avg,
                      const at::Tensor& exp_avg_sq, const at::Tensor&) {
  binding::check_lists("ds::cpu_adam_step", written(param, exp_avg, exp_avg_sq), {"grads", grad});
}

void rollback_meta(at::TensorList params, at::TensorList grads, at::TensorList exp_avgs,
                   at::TensorList exp_avg_sqs, std::int64_t, double, double, double, double, double,
                   bool, bool) {
  binding::check_lists("ds::cpu_adam_rollback", written(params, exp_avgs, exp_avg_sqs),
                       {"grads", grads});
}

}  // namespace
}  // namespace ds

TORCH_LIBRARY_FRAGMENT(ds, m) {
  m.def(
      "cpu_adam_step(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, "
      "Tensor(c!)[] exp_avg_sqs, *, int step, float lr, float beta1=0.9, float beta2=0.999, "
      "float eps=1e-8, float weight_decay=0.0, bool adamw=True, bool bias_correction=True) -> ()");
  m.def(
      "cpu_adam_step.copies(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, "
      "Tensor(c!)[] exp_avg_sqs, Tensor(d!)[] copies, *, int step, float lr, float beta1=0.9, "
      "float beta2=0.999, float eps=1e-8, float weight_decay=0.0, bool adamw=True, "
      "bool bias_correction=True, float grad_scale=1.0, float max_norm=0.0, "
      "Tensor? grad_norm=None, Tensor? found_inf=None) -> ()");
  // A list of one without the lists and the numbers one by one, whose conversion takes longer than
  // a small tensor's step. Of `numbers`, f64 [8]: step, lr, beta1, beta2, eps,
  // weight_decay, adamw, bias_correction.
  m.def(
      "cpu_adam_step.tensor(Tensor(a!) param, Tensor grad, Tensor(b!) exp_avg, "
      "Tensor(c!) exp_avg_sq, Tensor numbers) -> ()");
  m.def(
      "cpu_adam_rollback(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, "
      "Tensor(c!)[] exp_avg_sqs, *, int step, float lr, float beta1=0.9, float beta2=0.999, "
      "float eps=1e-8, float weight_decay=0.0, bool adamw=True, bool bias_correction=True) -> ()");
}

// Not for the key CPU: an empty list has no device, and tensors of another device get an error that
// says so. The function checks both.
TORCH_LIBRARY_IMPL(ds, CompositeExplicitAutograd, m) {
  m.impl("cpu_adam_step", TORCH_FN(ds::step_cpu));
  m.impl("cpu_adam_step.copies", TORCH_FN(ds::step_copies_cpu));
  m.impl("cpu_adam_step.tensor", TORCH_FN(ds::step_tensor_cpu));
  m.impl("cpu_adam_rollback", TORCH_FN(ds::rollback_cpu));
}

TORCH_LIBRARY_IMPL(ds, Meta, m) {
  m.impl("cpu_adam_step", TORCH_FN(ds::step_meta));
  m.impl("cpu_adam_step.copies", TORCH_FN(ds::step_copies_meta));
  m.impl("cpu_adam_step.tensor", TORCH_FN(ds::step_tensor_meta));
  m.impl("cpu_adam_rollback", TORCH_FN(ds::rollback_meta));
}

// torch 1.13 knows no way from here to Meta.
TORCH_LIBRARY_IMPL(ds, AutogradMeta, m) {
  m.impl("cpu_adam_step", torch::CppFunction::makeFallthrough());
  m.impl("cpu_adam_step.copies", torch::CppFunction::makeFallthrough());
  m.impl("cpu_adam_step.tensor", torch::CppFunction::makeFallthrough());
  m.impl("cpu_adam_rollback", torch::CppFunction::makeFallthrough());
}

// torch.ops.ds.fused_lamb_step; see fused_lamb.h for what it computes.

#include "bind_optimizer.h"

#include "fused_lamb.h"

namespace ds {
namespace {

constexpr const char* kName = "ds::fused_lamb_step";

using OptionalTensor = c10::optional<at::Tensor>;

std::vector<binding::List> written(at::TensorList params, at::TensorList exp_avgs,
                                   at::TensorList exp_avg_sqs) {
  return {{"params", params}, {"exp_avgs", exp_avgs}, {"exp_avg_sqs", exp_avg_sqs}};
}

void check(at::TensorList params, at::TensorList grads, at::TensorList exp_avgs,
           at::TensorList exp_avg_sqs, at::TensorList copies) {
  binding::check_step_lists(kName, written(params, exp_avgs, exp_avg_sqs), {"grads", grads},
                            {"copies", copies});
}

void step_lists(at::TensorList params, at::TensorList grads, at::TensorList exp_avgs,
                at::TensorList exp_avg_sqs, at::TensorList copies, std::int64_t step, double lr,
                double beta1, double beta2, double eps, double weight_decay, double min_ratio,
                double max_ratio, bool bias_correction, bool eps_inside_sqrt, double grad_scale,
                double max_norm, const OptionalTensor& step_on_device,
                const OptionalTensor& lr_on_device, const OptionalTensor& grad_scale_on_device,
                const OptionalTensor& grad_norm, const OptionalTensor& found_inf,
                const OptionalTensor& trust_ratios) {
  check(params, grads, exp_avgs, exp_avg_sqs, copies);
  if (!binding::on_one_device(kName, params)) return;
  const at::Device device = params[0].device();
  const OptimizerScalars scalars = binding::optimizer_scalars(
      kName, step_on_device, lr_on_device, grad_scale_on_device, grad_norm, found_inf, device);
  float* ratios = nullptr;
  if (trust_ratios.has_value()) {
    const at::Tensor& t = *trust_ratios;
    TORCH_CHECK(t.device() == device && t.scalar_type() == at::kFloat && t.is_contiguous() &&
                    t.numel() == static_cast<std::int64_t>(params.size()),
                kName, ": trust_ratios must be ", params.size(), " contiguous float32 on ", device,
                "; it is ", binding::describe(t));
    ratios = static_cast<float*>(t.data_ptr());
  }
  std::vector<at::Tensor> owned_grads;
  std::vector<FusedLambTensor> tensors;
  owned_grads.reserve(params.size());
  tensors.reserve(params.size());
  for (std::size_t i = 0; i < params.size(); ++i) {
    owned_grads.push_back(binding::grad_like(grads[i], params[i]));
    FusedLambTensor t{params[i].data_ptr(),
                      owned_grads[i].data_ptr(),
                      exp_avgs[i].data_ptr(),
                      exp_avg_sqs[i].data_ptr(),
                      nullptr,
                      params[i].numel()};
    t.param_dtype = binding::dtype_of(params[i]);
    t.grad_dtype = binding::dtype_of(grads[i]);
    t.state_dtype = binding::dtype_of(exp_avgs[i]);
    if (!copies.empty()) {
      t.copy = copies[i].data_ptr();
      t.copy_dtype = binding::dtype_of(copies[i]);
    }
    tensors.push_back(t);
  }
  const FusedLambOptions options{
      step,         lr,        beta1,     beta2,           eps,
      weight_decay, min_ratio, max_ratio, bias_correction, eps_inside_sqrt};
  binding::on_device_of(params[0], [&](const auto& where) {
    fused_lamb_step(tensors.data(), tensors.size(), options, {grad_scale, max_norm}, scalars,
                    ratios, where);
  });
  binding::bump_versions(written(params, exp_avgs, exp_avg_sqs));
  binding::bump_versions({{"copies", copies}});
}

// For torch.compile and fake tensors: the same errors, no arithmetic.
void step_meta(at::TensorList params, at::TensorList grads, at::TensorList exp_avgs,
               at::TensorList exp_avg_sqs, at::TensorList copies, std::int64_t, double, double,
               double, double, double, double, double, bool, bool, double, double,
               const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
               const OptionalTensor&, const OptionalTensor&, const OptionalTensor&) {
  check(params, grads, exp_avgs, exp_avg_sqs, copies);
}

}  // namespace
}  // namespace ds

TORCH_LIBRARY_FRAGMENT(ds, m) {
  m.def(
      "fused_lamb_step(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, "
      "Tensor(c!)[] exp_avg_sqs, Tensor(d!)[] copies, *, int step=1, float lr=1e-3, "
      "float beta1=0.9, float beta2=0.999, float eps=1e-8, float weight_decay=0.0, "
      "float min_ratio=0.01, float max_ratio=10.0, bool bias_correction=True, "
      "bool eps_inside_sqrt=False, float "
      "grad_scale=1.0, float max_norm=0.0, "
      "Tensor(e!)? step_on_device=None, Tensor? lr_on_device=None, "
      "Tensor? grad_scale_on_device=None, Tensor? grad_norm=None, Tensor? found_inf=None, "
      "Tensor(f!)? trust_ratios=None) -> ()");
}

// Not for the keys of devices: an empty list has no device, and tensors of another device get an
// error that says so. The function checks both.
TORCH_LIBRARY_IMPL(ds, CompositeExplicitAutograd, m) {
  m.impl("fused_lamb_step", TORCH_FN(ds::step_lists));
}

TORCH_LIBRARY_IMPL(ds, Meta, m) {
  m.impl("fused_lamb_step", TORCH_FN(ds::step_meta));
}

// torch 1.13 knows no way from here to Meta.
TORCH_LIBRARY_IMPL(ds, AutogradMeta, m) {
  m.impl("fused_lamb_step", torch::CppFunction::makeFallthrough());
}

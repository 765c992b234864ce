// torch.ops.ds.evoformer_attn and evoformer_attn_backward, and both into memory that is there:
// evoformer_attn_out_, evoformer_attn_backward_out_. See evoformer_attn.h for what they compute.
// q, k, v [B, N, L, H, D]; bias1 [B, N, 1, 1, L], bias2 [B, 1, H, L, L], either may be None, any
// dimension but L may be 1 for all; lse [B, N, H, L].

#include "bind_devices.h"

#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <tuple>

#include "evoformer_attn.h"

namespace ds {
namespace {

using OptionalTensor = c10::optional<at::Tensor>;
using Five = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

constexpr const char* kForward = "ds::evoformer_attn";
constexpr const char* kBackward = "ds::evoformer_attn_backward";

EvoformerType type_of(const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kHalf:
      return EvoformerType::f16;
    case at::kBFloat16:
      return EvoformerType::bf16;
    case at::kDouble:
      return EvoformerType::f64;
    default:
      return EvoformerType::f32;
  }
}
at::ScalarType wide_type(const at::Tensor& q) {
  return q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// --- Checks -------------------------------------------------------------------------------------

void check_like(const char* name, const char* what, const at::Tensor& t, const at::Tensor& q) {
  TORCH_CHECK(t.sizes() == q.sizes() && t.scalar_type() == q.scalar_type() &&
                  t.device() == q.device() && t.layout() == c10::kStrided,
              name, ": ", what,
              " must have the shape, dtype and device of q: ", binding::describe(t), " and ",
              binding::describe(q));
}

void check_bias(const char* name, const char* what, const OptionalTensor& bias, const at::Tensor& q,
                const std::array<std::int64_t, 5>& full, int fixed_from) {
  if (!bias.has_value()) return;
  bool fits = bias->dim() == 5;
  for (int d = 0; fits && d < 5; ++d) {
    const auto at = static_cast<std::size_t>(d);
    fits = bias->size(d) == full[at] || (d < fixed_from && bias->size(d) == 1);
  }
  TORCH_CHECK(fits, name, ": ", what, " must be ", at::IntArrayRef(full.data(), full.size()),
              " for q of ", q.sizes(), ": ", binding::describe(*bias));
  TORCH_CHECK(bias->scalar_type() == q.scalar_type() && bias->device() == q.device(), name, ": ",
              what, " must have the dtype and device of q: ", binding::describe(*bias), " and ",
              binding::describe(q));
}

void check(const char* name, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
           const OptionalTensor& bias1, const OptionalTensor& bias2) {
  TORCH_CHECK(q.dim() == 5, name, ": q must be [B, N, L, H, D]: ", binding::describe(q));
  const at::ScalarType type = q.scalar_type();
  TORCH_CHECK(
      type == at::kFloat || type == at::kHalf || type == at::kBFloat16 || type == at::kDouble, name,
      ": the dtype must be float16, bfloat16, float32 or float64: ", binding::describe(q));
  TORCH_CHECK(q.size(4) >= 8 && q.size(4) <= 128, name,
              ": the heads' dimension must be from 8 to 128: ", binding::describe(q));
  check_like(name, "k", k, q);
  check_like(name, "v", v, q);
  check_bias(name, "bias1", bias1, q, {q.size(0), q.size(1), 1, 1, q.size(2)}, 4);
  check_bias(name, "bias2", bias2, q, {q.size(0), 1, q.size(3), q.size(2), q.size(2)}, 3);
}

void check_rows(const char* name, const char* what, const at::Tensor& t, const at::Tensor& q) {
  const std::array<std::int64_t, 4> shape = {q.size(0), q.size(1), q.size(3), q.size(2)};
  TORCH_CHECK(
      t.sizes() == at::IntArrayRef(shape.data(), shape.size()) && t.scalar_type() == wide_type(q) &&
          t.device() == q.device() && (t.stride(3) == 1 || t.size(3) <= 1),
      name, ": ", what, " must be ", at::IntArrayRef(shape.data(), shape.size()),
      " with adjacent positions, ", wide_type(q), " on ", q.device(), ": ", binding::describe(t));
}

void check_written(const char* name, const char* what, const at::Tensor& t) {
  TORCH_CHECK(t.size(-1) <= 1 || t.stride(-1) == 1, name, ": the last dimension of ", what,
              " is not adjacent in memory, so it cannot be written: ", binding::describe(t));
}

// --- Memory -------------------------------------------------------------------------------------

at::Tensor adjacent(const at::Tensor& t) {
  return (t.size(-1) <= 1 || t.stride(-1) == 1) && !t.is_neg() ? t : t.contiguous();
}
OptionalTensor adjacent(const OptionalTensor& t) {
  if (!t.has_value()) return t;
  return adjacent(*t);
}

EvoformerTensor tensor_of(const at::Tensor& t) {
  return {t.data_ptr(), t.stride(0), t.stride(1), t.stride(2), t.stride(3)};
}
EvoformerRows rows_of(const at::Tensor& t) {
  return {t.data_ptr(), t.stride(0), t.stride(1), t.stride(2)};
}
// A dimension of 1 is one for all: its stride is 0.
std::int64_t stride_of(const at::Tensor& t, int d) {
  return t.size(d) == 1 ? 0 : t.stride(d);
}
EvoformerBias1 bias1_of(const OptionalTensor& t) {
  if (!t.has_value()) return {};
  return {t->data_ptr(), stride_of(*t, 0), stride_of(*t, 1)};
}
EvoformerBias2 bias2_of(const OptionalTensor& t) {
  if (!t.has_value()) return {};
  return {t->data_ptr(), stride_of(*t, 0), stride_of(*t, 2), t->stride(3)};
}

EvoformerProblem problem_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const OptionalTensor& bias1, const OptionalTensor& bias2,
                            const at::Tensor& out, const at::Tensor& lse) {
  return {{q.size(0), q.size(1), q.size(2), q.size(3), q.size(4)},
          type_of(q),
          tensor_of(q),
          tensor_of(k),
          tensor_of(v),
          bias1_of(bias1),
          bias2_of(bias2),
          tensor_of(out),
          rows_of(lse)};
}

// --- Forward ------------------------------------------------------------------------------------

void check_forward_out(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const OptionalTensor& bias1, const OptionalTensor& bias2,
                       const at::Tensor& out, const at::Tensor& lse) {
  check(kForward, q, k, v, bias1, bias2);
  check_like(kForward, "out", out, q);
  check_written(kForward, "out", out);
  check_rows(kForward, "lse", lse, q);
}

void compute(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
             const OptionalTensor& bias1, const OptionalTensor& bias2, const at::Tensor& out,
             const at::Tensor& lse) {
  const at::Tensor dense_q = adjacent(q), dense_k = adjacent(k), dense_v = adjacent(v);
  const OptionalTensor dense1 = adjacent(bias1), dense2 = adjacent(bias2);
  const EvoformerProblem problem = problem_of(dense_q, dense_k, dense_v, dense1, dense2, out, lse);
  binding::on_device_of(q, [&](const auto& options) { evoformer_attn(problem, options); });
}

void forward_out(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                 const OptionalTensor& bias1, const OptionalTensor& bias2, const at::Tensor& out,
                 const at::Tensor& lse) {
  check_forward_out(q, k, v, bias1, bias2, out, lse);
  compute(q, k, v, bias1, bias2, out, lse);
  binding::bump_versions({{"out", out}, {"lse", lse}});
}

std::tuple<at::Tensor, at::Tensor> forward_meta(const at::Tensor& q, const at::Tensor& k,
                                                const at::Tensor& v, const OptionalTensor& bias1,
                                                const OptionalTensor& bias2) {
  check(kForward, q, k, v, bias1, bias2);
  return {at::empty(q.sizes(), q.options()),
          at::empty({q.size(0), q.size(1), q.size(3), q.size(2)}, q.options().dtype(wide_type(q)))};
}

std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& q, const at::Tensor& k,
                                           const at::Tensor& v, const OptionalTensor& bias1,
                                           const OptionalTensor& bias2) {
  std::tuple<at::Tensor, at::Tensor> made = forward_meta(q, k, v, bias1, bias2);
  compute(q, k, v, bias1, bias2, std::get<0>(made), std::get<1>(made));
  return made;
}

// --- Backward -----------------------------------------------------------------------------------

void check_backward(const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k,
                    const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                    const OptionalTensor& bias1, const OptionalTensor& bias2) {
  check(kBackward, q, k, v, bias1, bias2);
  check_like(kBackward, "grad", grad, q);
  check_like(kBackward, "out", out, q);
  check_rows(kBackward, "lse", lse, q);
}

// Gradients of biases are written in their own dtype.
void compute_backward(const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k,
                      const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                      const at::Tensor& delta, const OptionalTensor& bias1,
                      const OptionalTensor& bias2, const at::Tensor& grad_q,
                      const at::Tensor& grad_k, const at::Tensor& grad_v,
                      const OptionalTensor& grad_bias1, const OptionalTensor& grad_bias2) {
  const at::Tensor dense_q = adjacent(q), dense_k = adjacent(k), dense_v = adjacent(v),
                   dense_out = adjacent(out), dense_grad = adjacent(grad);
  const OptionalTensor dense1 = adjacent(bias1), dense2 = adjacent(bias2);
  const EvoformerProblem problem =
      problem_of(dense_q, dense_k, dense_v, dense1, dense2, dense_out, lse);
  const OptionalTensor& typed = grad_bias1.has_value() ? grad_bias1 : grad_bias2;
  const EvoformerGradients gradients{
      tensor_of(dense_grad), rows_of(delta),
      tensor_of(grad_q),     tensor_of(grad_k),
      tensor_of(grad_v),     typed.has_value() ? type_of(*typed) : EvoformerType::f32,
      bias1_of(grad_bias1),  bias2_of(grad_bias2)};
  binding::on_device_of(
      q, [&](const auto& options) { evoformer_attn_backward(problem, gradients, options); });
}

// A gradient that is not asked for is a tensor without elements.
Five backward_meta(const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k,
                   const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                   const OptionalTensor& bias1, const OptionalTensor& bias2, bool want_bias1,
                   bool want_bias2) {
  check_backward(grad, q, k, v, out, lse, bias1, bias2);
  const auto of_bias = [&](const OptionalTensor& bias, bool want) {
    return want && bias.has_value() ? at::zeros(bias->sizes(), q.options())
                                    : at::empty({0}, q.options());
  };
  return {at::empty(q.sizes(), q.options()), at::empty(q.sizes(), q.options()),
          at::empty(q.sizes(), q.options()), of_bias(bias1, want_bias1),
          of_bias(bias2, want_bias2)};
}

Five backward(const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
              const at::Tensor& out, const at::Tensor& lse, const OptionalTensor& bias1,
              const OptionalTensor& bias2, bool want_bias1, bool want_bias2) {
  Five made = backward_meta(grad, q, k, v, out, lse, bias1, bias2, want_bias1, want_bias2);
  const auto wanted = [](const at::Tensor& t, const OptionalTensor& bias, bool want) {
    return want && bias.has_value() ? OptionalTensor(t) : OptionalTensor();
  };
  compute_backward(grad, q, k, v, out, lse, at::empty(lse.sizes(), lse.options()), bias1, bias2,
                   std::get<0>(made), std::get<1>(made), std::get<2>(made),
                   wanted(std::get<3>(made), bias1, want_bias1),
                   wanted(std::get<4>(made), bias2, want_bias2));
  return made;
}

void check_grad_bias(const char* what, const OptionalTensor& grad, const OptionalTensor& bias,
                     const at::Tensor& q) {
  if (!grad.has_value()) return;
  TORCH_CHECK(bias.has_value() && grad->sizes() == bias->sizes() &&
                  grad->scalar_type() == wide_type(q) && grad->device() == q.device(),
              kBackward, ": ", what, " must have its bias's shape and device, and be ",
              wide_type(q), ": ", binding::describe(*grad));
  check_written(kBackward, what, *grad);
}

void check_backward_out(const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k,
                        const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                        const at::Tensor& delta, const OptionalTensor& bias1,
                        const OptionalTensor& bias2, const at::Tensor& grad_q,
                        const at::Tensor& grad_k, const at::Tensor& grad_v,
                        const OptionalTensor& grad_bias1, const OptionalTensor& grad_bias2) {
  check_backward(grad, q, k, v, out, lse, bias1, bias2);
  check_rows(kBackward, "delta", delta, q);
  const std::array<std::pair<const char*, const at::Tensor*>, 3> written = {
      {{"grad_q", &grad_q}, {"grad_k", &grad_k}, {"grad_v", &grad_v}}};
  for (const auto& [what, t] : written) {
    check_like(kBackward, what, *t, q);
    check_written(kBackward, what, *t);
  }
  check_grad_bias("grad_bias1", grad_bias1, bias1, q);
  check_grad_bias("grad_bias2", grad_bias2, bias2, q);
}

void backward_out(const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k,
                  const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                  const at::Tensor& delta, const OptionalTensor& bias1, const OptionalTensor& bias2,
                  const at::Tensor& grad_q, const at::Tensor& grad_k, const at::Tensor& grad_v,
                  const OptionalTensor& grad_bias1, const OptionalTensor& grad_bias2) {
  check_backward_out(grad, q, k, v, out, lse, delta, bias1, bias2, grad_q, grad_k, grad_v,
                     grad_bias1, grad_bias2);
  compute_backward(grad, q, k, v, out, lse, delta, bias1, bias2, grad_q, grad_k, grad_v, grad_bias1,
                   grad_bias2);
  binding::bump_versions({{"delta", delta}, {"grad", {grad_q, grad_k, grad_v}}});
}

// --- Autograd -----------------------------------------------------------------------------------

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

template <class Signature>
auto op_of(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

struct Attention : torch::autograd::Function<Attention> {
  static variable_list forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, const OptionalTensor& bias1,
                               const OptionalTensor& bias2) {
    static const auto op = op_of<decltype(ds::forward)>(kForward);
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [out, lse] = op.call(q, k, v, bias1, bias2);
    const at::Tensor none;
    context->save_for_backward({q, k, v, bias1.value_or(none), bias2.value_or(none), out, lse});
    context->saved_data["want1"] = bias1.has_value() && bias1->requires_grad();
    context->saved_data["want2"] = bias2.has_value() && bias2->requires_grad();
    context->mark_non_differentiable({lse});
    return {out, lse};
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    static const auto op = op_of<decltype(ds::backward)>(kBackward);
    const variable_list saved = context->get_saved_variables();
    const auto optional = [](const at::Tensor& t) {
      return t.defined() ? OptionalTensor(t) : OptionalTensor();
    };
    const bool want1 = context->saved_data["want1"].toBool();
    const bool want2 = context->saved_data["want2"].toBool();
    auto [q, k, v, bias1, bias2] =
        op.call(grads[0], saved[0], saved[1], saved[2], saved[5], saved[6], optional(saved[3]),
                optional(saved[4]), want1, want2);
    return {q, k, v, want1 ? bias1 : at::Tensor(), want2 ? bias2 : at::Tensor()};
  }
};

std::tuple<at::Tensor, at::Tensor> forward_autograd(const at::Tensor& q, const at::Tensor& k,
                                                    const at::Tensor& v,
                                                    const OptionalTensor& bias1,
                                                    const OptionalTensor& bias2) {
  const variable_list made = Attention::apply(q, k, v, bias1, bias2);
  return {made[0], made[1]};
}

// A second derivative is an error, not silence.
Five backward_autograd(const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k,
                       const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                       const OptionalTensor& bias1, const OptionalTensor& bias2, bool want_bias1,
                       bool want_bias2) {
  bool asked = false;
  for (const at::Tensor* t : {&grad, &q, &k, &v}) asked = asked || t->requires_grad();
  TORCH_CHECK(!(asked && at::GradMode::is_enabled()), kBackward,
              ": its own gradient is not there; differentiate once, without create_graph");
  static const auto op = op_of<decltype(ds::backward)>(kBackward);
  const at::AutoDispatchBelowADInplaceOrView below;
  return op.call(grad, q, k, v, out, lse, bias1, bias2, want_bias1, want_bias2);
}

void implement(torch::Library& m) {
  m.impl("evoformer_attn", TORCH_FN(forward));
  m.impl("evoformer_attn_backward", TORCH_FN(backward));
  m.impl("evoformer_attn_out_", TORCH_FN(forward_out));
  m.impl("evoformer_attn_backward_out_", TORCH_FN(backward_out));
}

}  // namespace
}  // namespace ds

TORCH_LIBRARY_FRAGMENT(ds, m) {
  m.def(
      "evoformer_attn(Tensor q, Tensor k, Tensor v, Tensor? bias1=None, Tensor? bias2=None) -> "
      "(Tensor out, Tensor lse)");
  m.def(
      "evoformer_attn_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
      "Tensor? bias1=None, Tensor? bias2=None, bool want_bias1=True, bool want_bias2=True) -> "
      "(Tensor grad_q, Tensor grad_k, Tensor grad_v, Tensor grad_bias1, Tensor grad_bias2)");
  m.def(
      "evoformer_attn_out_(Tensor q, Tensor k, Tensor v, Tensor? bias1, Tensor? bias2, "
      "Tensor(a!) out, Tensor(b!) lse) -> ()");
  m.def(
      "evoformer_attn_backward_out_(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, "
      "Tensor lse, Tensor(a!) delta, Tensor? bias1, Tensor? bias2, Tensor(b!) grad_q, "
      "Tensor(c!) grad_k, Tensor(d!) grad_v, Tensor(e!)? grad_bias1, Tensor(f!)? grad_bias2) -> "
      "()");
}

DS_LIBRARY_IMPL_FOR_DEVICES(ds::implement)

TORCH_LIBRARY_IMPL(ds, Meta, m) {
  m.impl("evoformer_attn", TORCH_FN(ds::forward_meta));
  m.impl("evoformer_attn_backward", TORCH_FN(ds::backward_meta));
  m.impl("evoformer_attn_out_", TORCH_FN(ds::check_forward_out));
  m.impl("evoformer_attn_backward_out_", TORCH_FN(ds::check_backward_out));
}

TORCH_LIBRARY_IMPL(ds, Autograd, m) {
  m.impl("evoformer_attn", TORCH_FN(ds::forward_autograd));
  m.impl("evoformer_attn_backward", TORCH_FN(ds::backward_autograd));
}

// torch.ops.ds.nhwc_bias_add, nhwc_bias_add_add and nhwc_bias_add_bias_add; see spatial_inference.h
// for what they compute. Tensors are [N, C, H, W] in channels-last memory, as torch makes them;
// autograd works as with +.

#include "bind_devices.h"

#include <torch/csrc/autograd/custom_function.h>

#include "spatial_inference.h"

namespace ds {
namespace {

using OptionalTensor = c10::optional<at::Tensor>;

void check(const char* name, const at::Tensor& x, const at::Tensor& bias,
           const OptionalTensor& other, const OptionalTensor& other_bias) {
  TORCH_CHECK(x.dim() == 4, name, ": the input must be [N, C, H, W]: ", binding::describe(x));
  TORCH_CHECK(x.scalar_type() == at::kFloat || x.scalar_type() == at::kHalf ||
                  x.scalar_type() == at::kBFloat16,
              name, ": the dtype must be float32, float16 or bfloat16: ", binding::describe(x));
  TORCH_CHECK(x.is_contiguous(at::MemoryFormat::ChannelsLast), name,
              ": the input must be contiguous as channels_last: ", binding::describe(x));
  const auto same = [&](const char* what, const at::Tensor& t) {
    TORCH_CHECK(t.device() == x.device() && t.scalar_type() == x.scalar_type(), name, ": ", what,
                " must have the input's device and dtype: ", binding::describe(t), " and ",
                binding::describe(x));
  };
  const auto check_bias = [&](const char* what, const at::Tensor& t) {
    same(what, t);
    TORCH_CHECK(t.dim() == 1 && t.size(0) == x.size(1) && t.is_contiguous(), name, ": ", what,
                " must be ", x.size(1),
                " contiguous elements, one a channel: ", binding::describe(t));
  };
  check_bias("bias", bias);
  if (other.has_value()) {
    same("other", *other);
    TORCH_CHECK(other->sizes() == x.sizes() && other->is_contiguous(at::MemoryFormat::ChannelsLast),
                name, ": other must have the input's shape and be channels_last: ",
                binding::describe(*other), " and ", binding::describe(x));
  }
  if (other_bias.has_value()) check_bias("other_bias", *other_bias);
}

at::Tensor add(const char* name, const at::Tensor& x, const at::Tensor& bias,
               const OptionalTensor& other, const OptionalTensor& other_bias) {
  check(name, x, bias, other, other_bias);
  at::Tensor out = at::empty_like(x);
  SpatialInferenceSum sum{};
  sum.x = x.data_ptr();
  sum.bias = bias.data_ptr();
  if (other.has_value()) sum.other = other->data_ptr();
  if (other_bias.has_value()) sum.other_bias = other_bias->data_ptr();
  sum.out = out.data_ptr();
  sum.pixels = x.size(0) * x.size(2) * x.size(3);
  sum.channels = x.size(1);
  sum.dtype = binding::dtype_of(x);
  binding::on_device_of(x, [&](const auto& options) { spatial_inference_add(sum, options); });
  return out;
}

at::Tensor bias_add(const at::Tensor& x, const at::Tensor& bias) {
  return add("ds::nhwc_bias_add", x, bias, c10::nullopt, c10::nullopt);
}
at::Tensor bias_add_add(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& other) {
  return add("ds::nhwc_bias_add_add", x, bias, other, c10::nullopt);
}
at::Tensor bias_add_bias_add(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& other,
                             const at::Tensor& other_bias) {
  return add("ds::nhwc_bias_add_bias_add", x, bias, other, other_bias);
}

// For torch.compile and fake tensors: the same errors, no arithmetic.
at::Tensor bias_add_meta(const at::Tensor& x, const at::Tensor& bias) {
  check("ds::nhwc_bias_add", x, bias, c10::nullopt, c10::nullopt);
  return at::empty_like(x);
}
at::Tensor bias_add_add_meta(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& other) {
  check("ds::nhwc_bias_add_add", x, bias, other, c10::nullopt);
  return at::empty_like(x);
}
at::Tensor bias_add_bias_add_meta(const at::Tensor& x, const at::Tensor& bias,
                                  const at::Tensor& other, const at::Tensor& other_bias) {
  check("ds::nhwc_bias_add_bias_add", x, bias, other, other_bias);
  return at::empty_like(x);
}

// The gradient of a sum is that of each term; a bias collects it over batch, rows and columns.
at::Tensor over_pixels(const at::Tensor& grad) {
  return grad.sum(at::IntArrayRef({0, 2, 3}));
}

template <class Schema, class... Arguments>
at::Tensor call(const char* name, const Arguments&... arguments) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").template typed<Schema>().call(
      arguments...);
}

struct BiasAdd : torch::autograd::Function<BiasAdd> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x,
                            const at::Tensor& bias) {
    return call<at::Tensor(const at::Tensor&, const at::Tensor&)>("ds::nhwc_bias_add", x, bias);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list grads) {
    return {grads[0], over_pixels(grads[0])};
  }
};

struct BiasAddAdd : torch::autograd::Function<BiasAddAdd> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x,
                            const at::Tensor& bias, const at::Tensor& other) {
    return call<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&)>(
        "ds::nhwc_bias_add_add", x, bias, other);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list grads) {
    return {grads[0], over_pixels(grads[0]), grads[0]};
  }
};

struct BiasAddBiasAdd : torch::autograd::Function<BiasAddBiasAdd> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x,
                            const at::Tensor& bias, const at::Tensor& other,
                            const at::Tensor& other_bias) {
    return call<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                           const at::Tensor&)>("ds::nhwc_bias_add_bias_add", x, bias, other,
                                               other_bias);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list grads) {
    const at::Tensor bias = over_pixels(grads[0]);
    return {grads[0], bias, grads[0], bias};
  }
};

at::Tensor bias_add_autograd(const at::Tensor& x, const at::Tensor& bias) {
  return BiasAdd::apply(x, bias);
}
at::Tensor bias_add_add_autograd(const at::Tensor& x, const at::Tensor& bias,
                                 const at::Tensor& other) {
  return BiasAddAdd::apply(x, bias, other);
}
at::Tensor bias_add_bias_add_autograd(const at::Tensor& x, const at::Tensor& bias,
                                      const at::Tensor& other, const at::Tensor& other_bias) {
  return BiasAddBiasAdd::apply(x, bias, other, other_bias);
}

void implement(torch::Library& m) {
  m.impl("nhwc_bias_add", TORCH_FN(bias_add));
  m.impl("nhwc_bias_add_add", TORCH_FN(bias_add_add));
  m.impl("nhwc_bias_add_bias_add", TORCH_FN(bias_add_bias_add));
}

}  // namespace
}  // namespace ds

TORCH_LIBRARY_FRAGMENT(ds, m) {
  m.def("nhwc_bias_add(Tensor input, Tensor bias) -> Tensor");
  m.def("nhwc_bias_add_add(Tensor input, Tensor bias, Tensor other) -> Tensor");
  m.def(
      "nhwc_bias_add_bias_add(Tensor input, Tensor bias, Tensor other, Tensor other_bias) -> "
      "Tensor");
}

DS_LIBRARY_IMPL_FOR_DEVICES(ds::implement)

TORCH_LIBRARY_IMPL(ds, Meta, m) {
  m.impl("nhwc_bias_add", TORCH_FN(ds::bias_add_meta));
  m.impl("nhwc_bias_add_add", TORCH_FN(ds::bias_add_add_meta));
  m.impl("nhwc_bias_add_bias_add", TORCH_FN(ds::bias_add_bias_add_meta));
}

TORCH_LIBRARY_IMPL(ds, Autograd, m) {
  m.impl("nhwc_bias_add", TORCH_FN(ds::bias_add_autograd));
  m.impl("nhwc_bias_add_add", TORCH_FN(ds::bias_add_add_autograd));
  m.impl("nhwc_bias_add_bias_add", TORCH_FN(ds::bias_add_bias_add_autograd));
}

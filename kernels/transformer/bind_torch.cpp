// torch.ops.ds.transformer_layer: a BERT layer with its backward; products of matrices are torch's,
// what is between them is in transformer.h. float64 tensors get the reference.
//
// transformer_layer_forward and transformer_layer_backward are its halves, for those who keep what
// backward needs themselves.

#include "bind_devices.h"

#include <torch/csrc/autograd/custom_function.h>

#include "reference.h"
#include "transformer.h"

namespace ds {
namespace {

using OptionalTensor = c10::optional<at::Tensor>;
using binding::describe;

constexpr const char* kName = "ds::transformer_layer";

// Hidden size E, intermediate size F.
struct Weights {
  at::Tensor qkv_w, qkv_b;              // [3·E, E], [3·E]
  at::Tensor out_w, out_b;              // [E, E], [E]
  at::Tensor attn_norm_w, attn_norm_b;  // [E]: the norm behind the attention.
  at::Tensor inter_w, inter_b;          // [F, E], [F]
  at::Tensor output_w, output_b;        // [E, F], [E]
  at::Tensor norm_w, norm_b;            // [E]: the norm at the input, or behind the layer.
};

Weights weights_of(at::TensorList list) {
  TORCH_CHECK(list.size() == 12, kName, ": there must be 12 weights, there are ", list.size());
  const auto at = [&](std::size_t i) { return list[i].contiguous(); };
  return {at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7), at(8), at(9), at(10), at(11)};
}

struct Options {
  std::int64_t heads;
  double attention_dropout, hidden_dropout, epsilon;
  std::int64_t seed, offset;
  bool training, pre_norm, invertible_norm, gelu_checkpoint;

  // Three dropouts of a layer, each with random numbers of its own.
  DropoutOptions dropout(int which) const {
    DropoutOptions options;
    options.ratio = !training ? 0.0 : which == 0 ? attention_dropout : hidden_dropout;
    options.source.seed = static_cast<std::uint64_t>(seed);
    options.source.offset =
        static_cast<std::uint64_t>(offset) * 3 + static_cast<std::uint64_t>(which);
    return options;
  }
};

// What backward needs; a tensor that an option saves the memory of is not defined.
enum Saved {
  kFirst,  // Pre-norm: the normalized input; else what the last norm gets.
  kQkv,
  kLogSums,
  kContext,
  kAdded,   // Input and attention.
  kNormed,  // The norm of that.
  kGeluIn,
  kGelu,
  kFactors,       // Of the norm with norm_w,
  kAddedFactors,  // and of that with attn_norm_w.
  kSavedCount
};

void check(const at::Tensor& x, const OptionalTensor& mask, const Weights& w, const Options& o) {
  TORCH_CHECK(x.dim() == 3, kName, ": the input must be [B, S, E]: ", describe(x));
  TORCH_CHECK(x.scalar_type() == at::kFloat || x.scalar_type() == at::kHalf ||
                  x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kDouble,
              kName, ": the dtype must be float32, float16, bfloat16 or float64: ", describe(x));
  const std::int64_t e = x.size(2), f = w.inter_w.dim() == 2 ? w.inter_w.size(0) : 0;
  TORCH_CHECK(o.heads > 0 && e % o.heads == 0, kName, ": ", e, " hidden elements do not fall into ",
              o.heads, " heads");
  for (const double ratio : {o.attention_dropout, o.hidden_dropout}) {
    TORCH_CHECK(ratio >= 0.0 && ratio < 1.0, kName,
                ": a dropout ratio is at least 0 and less than 1 (it is ", ratio, ")");
  }
  TORCH_CHECK(o.epsilon >= 0.0, kName, ": epsilon is negative");
  const auto fits = [&](const char* name, const at::Tensor& t, at::IntArrayRef sizes) {
    TORCH_CHECK(
        t.sizes() == sizes && t.scalar_type() == x.scalar_type() && t.device() == x.device(), kName,
        ": ", name, " must be ", sizes, " of the input's dtype and device: ", describe(t));
  };
  fits("qkv_w", w.qkv_w, {3 * e, e});
  fits("qkv_b", w.qkv_b, {3 * e});
  fits("out_w", w.out_w, {e, e});
  fits("out_b", w.out_b, {e});
  fits("attn_norm_w", w.attn_norm_w, {e});
  fits("attn_norm_b", w.attn_norm_b, {e});
  fits("inter_w", w.inter_w, {f, e});
  fits("inter_b", w.inter_b, {f});
  fits("output_w", w.output_w, {e, f});
  fits("output_b", w.output_b, {e});
  fits("norm_w", w.norm_w, {e});
  fits("norm_b", w.norm_b, {e});
  if (mask.has_value()) {
    bool good = mask->dim() == 4 && mask->size(3) == x.size(1) && mask->device() == x.device() &&
                mask->scalar_type() == x.scalar_type();
    const std::int64_t sizes[] = {x.size(0), o.heads, x.size(1)};
    for (int d = 0; d < 3 && good; ++d) good = mask->size(d) == 1 || mask->size(d) == sizes[d];
    TORCH_CHECK(good, kName, ": the mask must be [", x.size(0), ", ", o.heads, ", ", x.size(1),
                ", ", x.size(1),
                "], or 1 in the first three dimensions, of the input's dtype: ", describe(*mask));
  }
}

// The core, or for float64 the reference.
template <class Core, class Reference>
void compute(const at::Tensor& x, const Core& core, const Reference& reference) {
  if (x.is_meta()) return;
  if (x.scalar_type() == at::kDouble) return reference();
  binding::on_device_of(x, core);
}

at::Tensor float_like(const at::Tensor& x, std::int64_t size) {
  return at::empty({size},
                   x.options().dtype(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat));
}

void* data(const at::Tensor& t) {
  return t.is_meta() || !t.defined() ? nullptr : t.data_ptr();
}

// --- The parts ---

LayerAttention attention_call(const at::Tensor& qkv, const at::Tensor& mask, const at::Tensor& out,
                              const at::Tensor& log_sums, std::int64_t heads,
                              const DropoutOptions& dropout) {
  LayerAttention call{};
  call.qkv = data(qkv);
  if (mask.defined()) {
    call.mask = data(mask);
    for (int d = 0; d < 3; ++d) call.mask_strides[d] = mask.size(d) == 1 ? 0 : mask.stride(d);
  }
  call.out = data(out);
  call.log_sums = static_cast<float*>(data(log_sums));
  call.batch = qkv.size(0);
  call.heads = heads;
  call.tokens = qkv.size(1);
  call.head_size = qkv.size(2) / 3 / heads;
  call.dropout = dropout;
  call.dtype = binding::dtype_of(qkv);
  return call;
}

at::Tensor attend(const at::Tensor& qkv, const at::Tensor& mask, const Options& o,
                  at::Tensor& log_sums) {
  at::Tensor out = at::empty({qkv.size(0), qkv.size(1), qkv.size(2) / 3}, qkv.options());
  log_sums = float_like(qkv, qkv.size(0) * o.heads * qkv.size(1));
  const LayerAttention call = attention_call(qkv, mask, out, log_sums, o.heads, o.dropout(0));
  compute(
      qkv, [&](const auto& options) { layer_attention(call, options); },
      [&] { reference::layer_attention(call, static_cast<double*>(data(log_sums))); });
  return out;
}

at::Tensor attend_backward(const at::Tensor& grad_out, const at::Tensor& qkv,
                           const at::Tensor& mask, const at::Tensor& out,
                           const at::Tensor& log_sums, const Options& o) {
  at::Tensor grad = at::empty(qkv.sizes(), qkv.options());
  const LayerAttentionBackward call{attention_call(qkv, mask, out, log_sums, o.heads, o.dropout(0)),
                                    data(grad_out), data(grad)};
  compute(
      qkv, [&](const auto& options) { layer_attention_backward(call, options); },
      [&] { reference::layer_attention_backward(call); });
  return grad;
}

std::int64_t rows_of(const at::Tensor& x) {
  return x.size(0) * x.size(1);
}

at::Tensor drop_and_add(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& residual,
                        const DropoutOptions& dropout) {
  at::Tensor out = at::empty(x.sizes(), x.options());
  const DropoutAdd call{data(x),    data(bias), data(residual), data(out),
                        rows_of(x), x.size(2),  dropout,        binding::dtype_of(x)};
  compute(
      x, [&](const auto& options) { dropout_add(call, options); },
      [&] { reference::dropout_add(call); });
  return out;
}

at::Tensor drop_backward(const at::Tensor& grad, const DropoutOptions& dropout) {
  at::Tensor out = at::empty(grad.sizes(), grad.options());
  const DropoutBackward call{data(grad), data(out), grad.numel(), dropout, binding::dtype_of(grad)};
  compute(
      grad, [&](const auto& options) { dropout_backward(call, options); },
      [&] { reference::dropout_backward(call); });
  return out;
}

at::Tensor norm(const at::Tensor& x, const at::Tensor& gamma, const at::Tensor& beta,
                double epsilon, at::Tensor& factors) {
  at::Tensor out = at::empty(x.sizes(), x.options());
  factors = float_like(x, rows_of(x));
  LayerNorm call{};
  call.x = data(x);
  call.gamma = data(gamma);
  call.beta = data(beta);
  call.out = data(out);
  call.factors = static_cast<float*>(data(factors));
  call.rows = rows_of(x);
  call.columns = x.size(2);
  call.epsilon = epsilon;
  call.dtype = binding::dtype_of(x);
  compute(
      x, [&](const auto& options) { layer_norm(call, options); },
      [&] { reference::layer_norm(call, static_cast<double*>(data(factors))); });
  return out;
}

// From x, or from `out` if x is not defined.
at::Tensor norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& out,
                         const at::Tensor& gamma, const at::Tensor& beta, const at::Tensor& factors,
                         at::Tensor& grad_gamma, at::Tensor& grad_beta) {
  at::Tensor grad_x = at::empty(grad.sizes(), grad.options());
  grad_gamma = at::empty(gamma.sizes(), gamma.options());
  grad_beta = at::empty(gamma.sizes(), gamma.options());
  LayerNormBackward call{};
  (x.defined() ? call.x : call.out) = data(x.defined() ? x : out);
  call.gamma = data(gamma);
  call.beta = data(beta);
  call.factors = static_cast<const float*>(data(factors));
  call.grad_out = data(grad);
  call.grad_x = data(grad_x);
  call.grad_gamma = data(grad_gamma);
  call.grad_beta = data(grad_beta);
  call.rows = rows_of(grad);
  call.columns = grad.size(2);
  call.dtype = binding::dtype_of(grad);
  compute(
      grad, [&](const auto& options) { layer_norm_backward(call, options); },
      [&] { reference::layer_norm_backward(call, static_cast<const double*>(data(factors))); });
  return grad_x;
}

at::Tensor gelu(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& grad) {
  at::Tensor out = at::empty(x.sizes(), x.options());
  const BiasGelu call{
      data(x),   data(bias),          grad.defined() ? data(grad) : nullptr, data(out), rows_of(x),
      x.size(2), binding::dtype_of(x)};
  compute(
      x, [&](const auto& options) { bias_gelu(call, options); },
      [&] { reference::bias_gelu(call); });
  return out;
}

// x·wᵀ for [B, S, …].
at::Tensor product(const at::Tensor& x, const at::Tensor& w) {
  return at::matmul(x, w.t());
}
at::Tensor grad_weight(const at::Tensor& grad, const at::Tensor& x) {
  return at::mm(grad.reshape({rows_of(grad), grad.size(2)}).t(),
                x.reshape({rows_of(x), x.size(2)}));
}
at::Tensor grad_bias(const at::Tensor& grad) {
  return grad.sum(at::IntArrayRef({0, 1}));
}

at::Tensor readable(const OptionalTensor& mask) {
  if (!mask.has_value()) return {};
  return mask->size(3) <= 1 || mask->stride(3) == 1 ? *mask : mask->contiguous();
}

// --- The layer ---

at::Tensor layer_forward(const at::Tensor& input, const OptionalTensor& optional_mask,
                         const Weights& w, const Options& o, std::vector<at::Tensor>& saved) {
  check(input, optional_mask, w, o);
  const at::Tensor x = input.contiguous(), mask = readable(optional_mask);
  saved.assign(kSavedCount, at::Tensor());
  const at::Tensor first = o.pre_norm ? norm(x, w.norm_w, w.norm_b, o.epsilon, saved[kFactors]) : x;
  const at::Tensor qkv = product(first, w.qkv_w).add_(w.qkv_b);
  const at::Tensor context = attend(qkv, mask, o, saved[kLogSums]);
  const at::Tensor added = drop_and_add(product(context, w.out_w), w.out_b, x, o.dropout(1));
  const at::Tensor normed =
      norm(added, w.attn_norm_w, w.attn_norm_b, o.epsilon, saved[kAddedFactors]);
  const at::Tensor gelu_in = product(normed, w.inter_w);
  const at::Tensor activated = gelu(gelu_in, w.inter_b, at::Tensor());
  at::Tensor out = drop_and_add(product(activated, w.output_w), w.output_b,
                                o.pre_norm ? added : normed, o.dropout(2));
  if (o.pre_norm) {
    saved[kFirst] = first;
  } else {
    const at::Tensor sum = out;
    out = norm(sum, w.norm_w, w.norm_b, o.epsilon, saved[kFactors]);
    if (!o.invertible_norm) saved[kFirst] = sum;
  }
  saved[kQkv] = qkv;
  saved[kContext] = context;
  if (!o.invertible_norm) saved[kAdded] = added;
  saved[kNormed] = normed;
  saved[kGeluIn] = gelu_in;
  if (!o.gelu_checkpoint) saved[kGelu] = activated;
  return out;
}

// Of the input, then of the weights in their order. `input` is not read if the norm of it is
// inverted, `output` only if that behind the layer is.
std::vector<at::Tensor> layer_backward(const at::Tensor& grad_output, const at::Tensor& input,
                                       const at::Tensor& output, const OptionalTensor& mask,
                                       const Weights& w, const Options& o, at::TensorList saved) {
  const at::Tensor none;
  at::Tensor grad = grad_output.contiguous(), norm_w, norm_b, attn_norm_w, attn_norm_b;
  if (!o.pre_norm) {
    grad = norm_backward(grad, saved[kFirst], output, w.norm_w, w.norm_b, saved[kFactors], norm_w,
                         norm_b);
  }
  const at::Tensor of_output = drop_backward(grad, o.dropout(2));
  const at::Tensor activated =
      saved[kGelu].defined() ? saved[kGelu] : gelu(saved[kGeluIn], w.inter_b, none);
  const at::Tensor output_w = grad_weight(of_output, activated), output_b = grad_bias(of_output);
  const at::Tensor of_gelu =
      gelu(saved[kGeluIn], w.inter_b, at::matmul(of_output, w.output_w).contiguous());
  const at::Tensor inter_w = grad_weight(of_gelu, saved[kNormed]), inter_b = grad_bias(of_gelu);
  at::Tensor of_normed = at::matmul(of_gelu, w.inter_w);
  if (!o.pre_norm) of_normed = of_normed + grad;
  at::Tensor of_added =
      norm_backward(of_normed.contiguous(), saved[kAdded], saved[kNormed], w.attn_norm_w,
                    w.attn_norm_b, saved[kAddedFactors], attn_norm_w, attn_norm_b);
  if (o.pre_norm) of_added = of_added + grad;
  const at::Tensor of_out = drop_backward(of_added, o.dropout(1));
  const at::Tensor out_w = grad_weight(of_out, saved[kContext]), out_b = grad_bias(of_out);
  const at::Tensor of_qkv = attend_backward(at::matmul(of_out, w.out_w).contiguous(), saved[kQkv],
                                            readable(mask), saved[kContext], saved[kLogSums], o);
  const at::Tensor first = o.pre_norm ? saved[kFirst] : input.contiguous();
  const at::Tensor qkv_w = grad_weight(of_qkv, first), qkv_b = grad_bias(of_qkv);
  at::Tensor of_first = at::matmul(of_qkv, w.qkv_w);
  if (o.pre_norm) {
    of_first = norm_backward(of_first.contiguous(), o.invertible_norm ? none : input.contiguous(),
                             saved[kFirst], w.norm_w, w.norm_b, saved[kFactors], norm_w, norm_b);
  }
  return {of_added + of_first,
          qkv_w,
          qkv_b,
          out_w,
          out_b,
          attn_norm_w,
          attn_norm_b,
          inter_w,
          inter_b,
          output_w,
          output_b,
          norm_w,
          norm_b};
}

Options options_of(std::int64_t heads, double attention_dropout, double hidden_dropout,
                   double epsilon, std::int64_t seed, std::int64_t offset, bool training,
                   bool pre_norm, bool invertible_norm, bool gelu_checkpoint) {
  return {heads,  attention_dropout, hidden_dropout, epsilon,         seed,
          offset, training,          pre_norm,       invertible_norm, gelu_checkpoint};
}

at::Tensor layer(const at::Tensor& input, const OptionalTensor& mask, at::TensorList weights,
                 std::int64_t heads, double attention_dropout, double hidden_dropout,
                 double epsilon, std::int64_t seed, std::int64_t offset, bool training,
                 bool pre_norm, bool invertible_norm, bool gelu_checkpoint) {
  std::vector<at::Tensor> saved;
  return layer_forward(input, mask, weights_of(weights),
                       options_of(heads, attention_dropout, hidden_dropout, epsilon, seed, offset,
                                  training, pre_norm, invertible_norm, gelu_checkpoint),
                       saved);
}

// A tensor of no elements stands for one that is not saved.
std::tuple<at::Tensor, std::vector<at::Tensor>> forward_op(
    const at::Tensor& input, const OptionalTensor& mask, at::TensorList weights, std::int64_t heads,
    double attention_dropout, double hidden_dropout, double epsilon, std::int64_t seed,
    std::int64_t offset, bool training, bool pre_norm, bool invertible_norm, bool gelu_checkpoint) {
  std::vector<at::Tensor> saved;
  const at::Tensor out =
      layer_forward(input, mask, weights_of(weights),
                    options_of(heads, attention_dropout, hidden_dropout, epsilon, seed, offset,
                               training, pre_norm, invertible_norm, gelu_checkpoint),
                    saved);
  for (at::Tensor& t : saved) {
    if (!t.defined()) t = at::empty({0}, input.options());
  }
  return {out, saved};
}

std::vector<at::Tensor> backward_op(const at::Tensor& grad_output, const at::Tensor& input,
                                    const at::Tensor& output, const OptionalTensor& mask,
                                    at::TensorList weights, at::TensorList saved,
                                    std::int64_t heads, double attention_dropout,
                                    double hidden_dropout, double epsilon, std::int64_t seed,
                                    std::int64_t offset, bool training, bool pre_norm,
                                    bool invertible_norm, bool gelu_checkpoint) {
  TORCH_CHECK(saved.size() == kSavedCount, kName, ": backward needs what forward saved, ",
              static_cast<int>(kSavedCount), " tensors; there are ", saved.size());
  const Options o = options_of(heads, attention_dropout, hidden_dropout, epsilon, seed, offset,
                               training, pre_norm, invertible_norm, gelu_checkpoint);
  const Weights w = weights_of(weights);
  check(input, mask, w, o);
  TORCH_CHECK(grad_output.sizes() == input.sizes(), kName,
              ": grad_output must have the input's shape: ", describe(grad_output), " and ",
              describe(input));
  std::vector<at::Tensor> kept = saved.vec();
  if (!o.pre_norm && o.invertible_norm) kept[kFirst] = at::Tensor();
  if (o.invertible_norm) kept[kAdded] = at::Tensor();
  if (o.gelu_checkpoint) kept[kGelu] = at::Tensor();
  return layer_backward(grad_output, input, output, mask, w, o, kept);
}

struct Layer : torch::autograd::Function<Layer> {
  using Context = torch::autograd::AutogradContext;
  using List = torch::autograd::variable_list;

  static at::Tensor forward(Context* ctx, const at::Tensor& input, const OptionalTensor& mask,
                            const at::Tensor& qkv_w, const at::Tensor& qkv_b,
                            const at::Tensor& out_w, const at::Tensor& out_b,
                            const at::Tensor& attn_norm_w, const at::Tensor& attn_norm_b,
                            const at::Tensor& inter_w, const at::Tensor& inter_b,
                            const at::Tensor& output_w, const at::Tensor& output_b,
                            const at::Tensor& norm_w, const at::Tensor& norm_b, const Options& o) {
    const at::AutoDispatchBelowADInplaceOrView below;
    List kept;
    const at::Tensor out =
        layer_forward(input, mask,
                      weights_of({qkv_w, qkv_b, out_w, out_b, attn_norm_w, attn_norm_b, inter_w,
                                  inter_b, output_w, output_b, norm_w, norm_b}),
                      o, kept);
    // Of a norm that is inverted neither the input nor its sum is kept.
    const bool inverted = o.pre_norm && o.invertible_norm;
    kept.insert(kept.end(), {inverted ? at::Tensor() : input,
                             o.invertible_norm && !o.pre_norm ? out : at::Tensor(),
                             mask.value_or(at::Tensor()), qkv_w, qkv_b, out_w, out_b, attn_norm_w,
                             attn_norm_b, inter_w, inter_b, output_w, output_b, norm_w, norm_b});
    ctx->save_for_backward(kept);
    auto& data = ctx->saved_data;
    data["heads"] = o.heads;
    data["attention_dropout"] = o.attention_dropout;
    data["hidden_dropout"] = o.hidden_dropout;
    data["epsilon"] = o.epsilon;
    data["seed"] = o.seed;
    data["offset"] = o.offset;
    data["training"] = o.training;
    data["pre_norm"] = o.pre_norm;
    data["invertible_norm"] = o.invertible_norm;
    data["gelu_checkpoint"] = o.gelu_checkpoint;
    return out;
  }

  static List backward(Context* ctx, const List& grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(), kName,
                ": there is no second derivative (create_graph=True)");
    const List kept = ctx->get_saved_variables();
    auto& data = ctx->saved_data;
    const Options o = options_of(
        data["heads"].toInt(), data["attention_dropout"].toDouble(),
        data["hidden_dropout"].toDouble(), data["epsilon"].toDouble(), data["seed"].toInt(),
        data["offset"].toInt(), data["training"].toBool(), data["pre_norm"].toBool(),
        data["invertible_norm"].toBool(), data["gelu_checkpoint"].toBool());
    const auto at = [&](std::size_t i) { return kept[kSavedCount + i]; };
    List weights;
    for (std::size_t i = 3; i < 15; ++i) weights.push_back(at(i));
    const OptionalTensor mask = at(2).defined() ? OptionalTensor(at(2)) : c10::nullopt;
    List out = layer_backward(grads[0], at(0), at(1), mask, weights_of(weights), o, kept);
    out.insert(out.begin() + 1, at::Tensor());  // The mask has no gradient,
    out.emplace_back();                         // nor have the options.
    return out;
  }
};

at::Tensor layer_autograd(const at::Tensor& input, const OptionalTensor& mask, at::TensorList w,
                          std::int64_t heads, double attention_dropout, double hidden_dropout,
                          double epsilon, std::int64_t seed, std::int64_t offset, bool training,
                          bool pre_norm, bool invertible_norm, bool gelu_checkpoint) {
  TORCH_CHECK(w.size() == 12, kName, ": there must be 12 weights, there are ", w.size());
  return Layer::apply(input, mask, w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9],
                      w[10], w[11],
                      options_of(heads, attention_dropout, hidden_dropout, epsilon, seed, offset,
                                 training, pre_norm, invertible_norm, gelu_checkpoint));
}

// The same functions for meta tensors: all checks, no arithmetic.
void implement(torch::Library& m) {
  m.impl("transformer_layer", TORCH_FN(layer));
  m.impl("transformer_layer_forward", TORCH_FN(forward_op));
  m.impl("transformer_layer_backward", TORCH_FN(backward_op));
}

}  // namespace
}  // namespace ds

TORCH_LIBRARY_FRAGMENT(ds, m) {
  m.def(
      "transformer_layer(Tensor input, Tensor? mask, Tensor[] weights, int heads, "
      "float attention_dropout, float hidden_dropout, float epsilon, int seed, int offset, "
      "bool training, bool pre_norm, bool invertible_norm=False, bool gelu_checkpoint=False) -> "
      "Tensor");
  m.def(
      "transformer_layer_forward(Tensor input, Tensor? mask, Tensor[] weights, int heads, "
      "float attention_dropout, float hidden_dropout, float epsilon, int seed, int offset, "
      "bool training, bool pre_norm, bool invertible_norm, bool gelu_checkpoint) -> "
      "(Tensor, Tensor[])");
  m.def(
      "transformer_layer_backward(Tensor grad_output, Tensor input, Tensor output, Tensor? mask, "
      "Tensor[] weights, Tensor[] saved, int heads, float attention_dropout, "
      "float hidden_dropout, float epsilon, int seed, int offset, bool training, bool pre_norm, "
      "bool invertible_norm, bool gelu_checkpoint) -> Tensor[]");
}

DS_LIBRARY_IMPL_FOR_DEVICES(ds::implement)

TORCH_LIBRARY_IMPL(ds, Meta, m) {
  ds::implement(m);
}

TORCH_LIBRARY_IMPL(ds, Autograd, m) {
  m.impl("transformer_layer", TORCH_FN(ds::layer_autograd));
}

// torch 1.13 knows no way from here to Meta.
TORCH_LIBRARY_IMPL(ds, AutogradMeta, m) {
  for (const char* name : {"transformer_layer_forward", "transformer_layer_backward"}) {
    m.impl(name, torch::CppFunction::makeFallthrough());
  }
}

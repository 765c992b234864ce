// torch.ops.ds.layer_norm, rms_norm, bias_activation, gated_activation, cached_attention, …; see
// transformer_inference.h for what they compute. For inference: there is no backward.
//
// Inputs that are not contiguous are copied where they are only read; what is written must be
// contiguous, but for the heads that rotary_ turns, which only need contiguous elements.

#include "bind_devices.h"

#include "transformer_inference.h"

namespace ds {
namespace {

using OptionalTensor = c10::optional<at::Tensor>;
using binding::describe;

void check_dtype(const char* name, const at::Tensor& x) {
  TORCH_CHECK(x.scalar_type() == at::kFloat || x.scalar_type() == at::kHalf ||
                  x.scalar_type() == at::kBFloat16,
              name, ": the dtype must be float32, float16 or bfloat16: ", describe(x));
}

void check_same(const char* name, const char* what, const at::Tensor& t, const at::Tensor& x) {
  TORCH_CHECK(t.device() == x.device() && t.scalar_type() == x.scalar_type(), name, ": ", what,
              " must have the input's device and dtype: ", describe(t), " and ", describe(x));
}

void check_input(const char* name, const at::Tensor& x) {
  TORCH_CHECK(x.dim() >= 1, name, ": the input must have at least one dimension: ", describe(x));
  check_dtype(name, x);
}

void check_like(const char* name, const char* what, const at::Tensor& t, const at::Tensor& x) {
  check_same(name, what, t, x);
  TORCH_CHECK(t.sizes() == x.sizes(), name, ": ", what,
              " must have the input's shape: ", describe(t), " and ", describe(x));
}

void check_row(const char* name, const char* what, const at::Tensor& t, const at::Tensor& x,
               std::int64_t size) {
  check_same(name, what, t, x);
  TORCH_CHECK(t.dim() == 1 && t.size(0) == size, name, ": ", what, " must be [", size,
              "]: ", describe(t));
}

void check_row(const char* name, const char* what, const OptionalTensor& t, const at::Tensor& x,
               std::int64_t size) {
  if (t.has_value()) check_row(name, what, *t, x, size);
}

void check_written(const char* name, const char* what, const at::Tensor& t) {
  TORCH_CHECK(t.is_contiguous() && !t.is_neg(), name, ": ", what,
              " is written and must be contiguous: ", describe(t));
}

// As memory that a core can read; keeps a copy alive as long as this.
class Read {
 public:
  Read() = default;
  explicit Read(const at::Tensor& t) : tensor_(t.resolve_neg().contiguous()) {}
  explicit Read(const OptionalTensor& t) {
    if (t.has_value()) tensor_ = t->resolve_neg().contiguous();
  }
  const void* data() const { return tensor_.defined() ? tensor_.data_ptr() : nullptr; }

 private:
  at::Tensor tensor_;
};

bool is_meta(const at::Tensor& t) {
  return t.is_meta();
}

std::int64_t columns_of(const at::Tensor& x) {
  return x.size(-1);
}
std::int64_t rows_of(const at::Tensor& x) {
  return columns_of(x) == 0 ? 0 : x.numel() / columns_of(x);
}

at::Tensor fresh_like(const at::Tensor& x) {
  return at::empty(x.sizes(), x.options());
}

void written(const at::Tensor& t) {
  if (!t.is_inference()) t.unsafeGetTensorImpl()->bump_version();
}

// --- Norms ---

std::tuple<at::Tensor, at::Tensor> norm(const char* name, NormKind kind, const at::Tensor& x,
                                        const OptionalTensor& residual, const OptionalTensor& bias,
                                        const at::Tensor& gamma, const OptionalTensor& beta,
                                        double epsilon) {
  check_input(name, x);
  if (residual.has_value()) check_like(name, "residual", *residual, x);
  check_row(name, "bias", bias, x, columns_of(x));
  check_row(name, "gamma", gamma, x, columns_of(x));
  check_row(name, "beta", beta, x, columns_of(x));
  at::Tensor out = fresh_like(x), sum;
  if (residual.has_value()) sum = fresh_like(x);
  if (is_meta(x)) return {out, sum};
  const Read input(x), r(residual), b(bias), g(gamma), offset(beta);
  NormRows call{};
  call.x = input.data();
  call.residual = r.data();
  call.bias = b.data();
  call.gamma = g.data();
  call.beta = offset.data();
  call.out = out.data_ptr();
  call.sum = residual.has_value() ? sum.data_ptr() : nullptr;
  call.rows = rows_of(x);
  call.columns = columns_of(x);
  call.epsilon = epsilon;
  call.kind = kind;
  call.dtype = binding::dtype_of(x);
  binding::on_device_of(x, [&](const auto& options) { norm_rows(call, options); });
  return {out, sum};
}

at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& gamma, const at::Tensor& beta,
                      double epsilon) {
  return std::get<0>(
      norm("ds::layer_norm", NormKind::layer, x, c10::nullopt, c10::nullopt, gamma, beta, epsilon));
}
std::tuple<at::Tensor, at::Tensor> layer_norm_residual(const at::Tensor& x,
                                                       const at::Tensor& residual,
                                                       const OptionalTensor& bias,
                                                       const at::Tensor& gamma,
                                                       const at::Tensor& beta, double epsilon) {
  return norm("ds::layer_norm_residual", NormKind::layer, x, residual, bias, gamma, beta, epsilon);
}
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& gamma, double epsilon) {
  return std::get<0>(norm("ds::rms_norm", NormKind::rms, x, c10::nullopt, c10::nullopt, gamma,
                          c10::nullopt, epsilon));
}
std::tuple<at::Tensor, at::Tensor> rms_norm_residual(const at::Tensor& x,
                                                     const at::Tensor& residual,
                                                     const at::Tensor& gamma, double epsilon) {
  return norm("ds::rms_norm_residual", NormKind::rms, x, residual, c10::nullopt, gamma,
              c10::nullopt, epsilon);
}

// --- Activations ---

Activation activation_of(const char* name, const std::string& text) {
  if (text == "identity") return Activation::identity;
  if (text == "relu") return Activation::relu;
  if (text == "gelu_tanh") return Activation::gelu_tanh;
  if (text == "gelu") return Activation::gelu;
  if (text == "silu") return Activation::silu;
  TORCH_CHECK(false, name, ": the activation \"", text,
              "\" is not known; known are identity, relu, gelu_tanh, gelu and silu");
}

at::Tensor activate(const char* name, const at::Tensor& x, const OptionalTensor& bias,
                    const std::string& activation, bool gated) {
  const Activation kind = activation_of(name, activation);
  check_input(name, x);
  check_row(name, "bias", bias, x, columns_of(x));
  std::vector<std::int64_t> sizes = x.sizes().vec();
  if (gated) {
    TORCH_CHECK(columns_of(x) % 2 == 0, name,
                ": the input's last dimension is values and gates, as many of each: ", describe(x));
    sizes.back() /= 2;
  }
  at::Tensor out = at::empty(sizes, x.options());
  if (is_meta(x)) return out;
  const Read input(x), b(bias);
  const ActivationRows call{input.data(), b.data(), out.data_ptr(), rows_of(x),
                            sizes.back(), kind,     gated,          binding::dtype_of(x)};
  binding::on_device_of(x, [&](const auto& options) { activation_rows(call, options); });
  return out;
}

at::Tensor bias_activation(const at::Tensor& x, const OptionalTensor& bias,
                           const std::string& activation) {
  return activate("ds::bias_activation", x, bias, activation, false);
}
at::Tensor gated_activation(const at::Tensor& x, const OptionalTensor& bias,
                            const std::string& activation) {
  return activate("ds::gated_activation", x, bias, activation, true);
}

// --- Sums ---

void residual_add_(const at::Tensor& residual, const at::Tensor& hidden,
                   const OptionalTensor& attention, const OptionalTensor& attention_bias,
                   const OptionalTensor& bias, double scale, bool scale_attention) {
  constexpr const char* kName = "ds::residual_add_";
  check_input(kName, residual);
  check_written(kName, "residual", residual);
  check_like(kName, "hidden", hidden, residual);
  if (attention.has_value()) check_like(kName, "attention", *attention, residual);
  check_row(kName, "attention_bias", attention_bias, residual, columns_of(residual));
  check_row(kName, "bias", bias, residual, columns_of(residual));
  if (is_meta(residual)) return;
  const Read h(hidden), a(attention), ab(attention_bias), b(bias);
  const ResidualRows call{residual.data_ptr(),
                          h.data(),
                          a.data(),
                          ab.data(),
                          b.data(),
                          rows_of(residual),
                          columns_of(residual),
                          scale,
                          scale_attention,
                          binding::dtype_of(residual)};
  binding::on_device_of(residual, [&](const auto& options) { residual_rows(call, options); });
  written(residual);
}

void moe_residual_(const at::Tensor& out, const at::Tensor& residual,
                   const at::Tensor& coefficients) {
  constexpr const char* kName = "ds::moe_residual_";
  check_input(kName, out);
  check_written(kName, "output", out);
  check_like(kName, "residual", residual, out);
  check_same(kName, "coefficients", coefficients, out);
  TORCH_CHECK(coefficients.numel() == 2 * columns_of(out), kName, ": coefficients must be [2, ",
              columns_of(out), "]: ", describe(coefficients));
  if (is_meta(out)) return;
  const Read r(residual), c(coefficients);
  const MoeRows call{out.data_ptr(), r.data(),        c.data(),
                     rows_of(out),   columns_of(out), binding::dtype_of(out)};
  binding::on_device_of(out, [&](const auto& options) { moe_rows(call, options); });
  written(out);
}

at::Tensor dequantize_int8(const at::Tensor& weight, const at::Tensor& scales,
                           at::ScalarType dtype) {
  constexpr const char* kName = "ds::dequantize_int8";
  TORCH_CHECK(weight.dim() == 2 && weight.scalar_type() == at::kChar, kName,
              ": weight must be int8 and have two dimensions: ", describe(weight));
  TORCH_CHECK(scales.scalar_type() == at::kFloat && scales.device() == weight.device(), kName,
              ": scales must be float32 and on the weight's device: ", describe(scales));
  TORCH_CHECK(scales.numel() > 0 && weight.size(0) % scales.numel() == 0, kName, ": ",
              weight.size(0), " rows do not fall into ", scales.numel(), " equal groups");
  at::Tensor out = at::empty(weight.sizes(), weight.options().dtype(dtype));
  check_dtype(kName, out);
  if (is_meta(weight)) return out;
  const Read w(weight), s(scales);
  const DequantizeRows call{static_cast<const std::int8_t*>(w.data()),
                            static_cast<const float*>(s.data()),
                            out.data_ptr(),
                            weight.size(0),
                            weight.size(1),
                            scales.numel(),
                            binding::dtype_of(out)};
  binding::on_device_of(weight, [&](const auto& options) { dequantize_rows(call, options); });
  return out;
}

// --- Attention ---

HeadStrides strides_of(const at::Tensor& t) {
  return {t.stride(0), t.stride(1), t.stride(2)};
}

// [B, H, S, D] in any order of memory whose last dimension is contiguous; else a copy.
at::Tensor readable_heads(const at::Tensor& t) {
  const at::Tensor plain = t.resolve_neg();
  return plain.size(3) <= 1 || plain.stride(3) == 1 ? plain : plain.contiguous();
}

// Of [B or 1, H or 1, S or 1, keys]: what does not repeat has its stride.
struct Term {
  Term(const char* name, const char* what, const OptionalTensor& t, const at::Tensor& like,
       at::IntArrayRef scores) {
    if (!t.has_value()) return;
    check_same(name, what, *t, like);
    bool fits = t->dim() == 4 && t->size(3) == scores[3];
    for (int d = 0; d < 3 && fits; ++d) fits = t->size(d) == 1 || t->size(d) == scores[d];
    TORCH_CHECK(fits, name, ": ", what, " must be ", scores,
                ", or 1 in the first three dimensions: ", describe(*t));
    tensor = readable_heads(*t);
    const auto stride = [&](int d) { return tensor.size(d) == 1 ? 0 : tensor.stride(d); };
    strides = {stride(0), stride(1), stride(2)};
  }
  const void* data() const { return tensor.defined() ? tensor.data_ptr() : nullptr; }

  at::Tensor tensor;
  HeadStrides strides{};
};

at::Tensor masked_softmax(const at::Tensor& scores, const OptionalTensor& mask,
                          const OptionalTensor& alibi, double scale, bool causal,
                          std::int64_t window) {
  constexpr const char* kName = "ds::masked_softmax";
  check_input(kName, scores);
  TORCH_CHECK(scores.dim() == 4, kName, ": scores must be [B, H, S, keys]: ", describe(scores));
  TORCH_CHECK(window >= 0, kName, ": window is negative");
  const Term m(kName, "mask", mask, scores, scores.sizes());
  const Term a(kName, "alibi", alibi, scores, scores.sizes());
  at::Tensor out = fresh_like(scores);
  if (is_meta(scores)) return out;
  const Read input(scores);
  const SoftmaxRows call{input.data(),
                         out.data_ptr(),
                         scores.size(0),
                         scores.size(1),
                         scores.size(2),
                         scores.size(3),
                         scale,
                         {m.data(), m.strides, a.data(), a.strides, causal, window},
                         binding::dtype_of(scores)};
  binding::on_device_of(scores, [&](const auto& options) { softmax_rows(call, options); });
  return out;
}

at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const OptionalTensor& mask, const OptionalTensor& alibi, double scale,
                     bool causal, std::int64_t window) {
  constexpr const char* kName = "ds::cached_attention";
  check_input(kName, query);
  check_same(kName, "key", key, query);
  check_same(kName, "value", value, query);
  TORCH_CHECK(query.dim() == 4 && key.dim() == 4 && key.sizes() == value.sizes() &&
                  key.size(0) == query.size(0) && key.size(3) == query.size(3),
              kName,
              ": query must be [B, H, S, D], key and value [B, heads, keys, D]: ", describe(query),
              ", ", describe(key), " and ", describe(value));
  TORCH_CHECK(key.size(1) > 0 && query.size(1) % key.size(1) == 0, kName, ": ", query.size(1),
              " heads cannot share ", key.size(1), " heads of keys");
  TORCH_CHECK(window >= 0, kName, ": window is negative");
  const std::int64_t batch = query.size(0), heads = query.size(1), queries = query.size(2),
                     keys = key.size(2), size = query.size(3);
  const std::int64_t scores[] = {batch, heads, queries, keys};
  const Term m(kName, "mask", mask, query, scores), a(kName, "alibi", alibi, query, scores);
  at::Tensor out = at::empty({batch, queries, heads * size}, query.options());
  if (is_meta(query)) return out;
  const at::Tensor q = readable_heads(query), k = readable_heads(key), v = readable_heads(value);
  CachedAttention call{};
  call.query = q.data_ptr();
  call.key = k.data_ptr();
  call.value = v.data_ptr();
  call.out = out.data_ptr();
  call.query_strides = strides_of(q);
  call.key_strides = strides_of(k);
  call.value_strides = strides_of(v);
  call.out_strides = {queries * heads * size, size, heads * size};
  call.batch = batch;
  call.heads = heads;
  call.kv_heads = key.size(1);
  call.queries = queries;
  call.keys = keys;
  call.head_size = size;
  call.scale = scale;
  call.terms = {m.data(), m.strides, a.data(), a.strides, causal, window};
  call.dtype = binding::dtype_of(query);
  binding::on_device_of(query, [&](const auto& options) { cached_attention(call, options); });
  return out;
}

void rotary_(const at::Tensor& x, const OptionalTensor& positions, std::int64_t offset,
             std::int64_t rotary_dim, bool rotate_half, double theta) {
  constexpr const char* kName = "ds::rotary_";
  check_input(kName, x);
  TORCH_CHECK(x.dim() == 4, kName, ": x must be [B, H, S, D]: ", describe(x));
  TORCH_CHECK((x.size(3) <= 1 || x.stride(3) == 1) && !x.is_neg(), kName,
              ": the last dimension must be contiguous: ", describe(x));
  TORCH_CHECK(rotary_dim >= 0 && rotary_dim % 2 == 0 && rotary_dim <= x.size(3), kName,
              ": rotary_dim must be even and at most ", x.size(3), " (it is ", rotary_dim, ")");
  TORCH_CHECK(theta > 0, kName, ": theta must be positive");
  if (positions.has_value()) {
    TORCH_CHECK(positions->scalar_type() == at::kLong && positions->dim() == 2 &&
                    positions->size(0) == x.size(0) && positions->size(1) == x.size(2) &&
                    positions->device() == x.device(),
                kName, ": positions must be int64 [", x.size(0), ", ", x.size(2),
                "] on the device of x: ", describe(*positions));
  }
  if (is_meta(x)) return;
  const Read p(positions);
  Rotary call{};
  call.x = x.data_ptr();
  call.strides = strides_of(x);
  call.batch = x.size(0);
  call.heads = x.size(1);
  call.tokens = x.size(2);
  call.head_size = x.size(3);
  call.rotary_dim = rotary_dim;
  call.positions = static_cast<const std::int64_t*>(p.data());
  call.offset = offset;
  call.theta = theta;
  call.rotate_half = rotate_half;
  call.dtype = binding::dtype_of(x);
  binding::on_device_of(x, [&](const auto& options) { rotary(call, options); });
  written(x);
}

// The same functions for meta tensors: all checks, no arithmetic.
void implement(torch::Library& m) {
  m.impl("layer_norm", TORCH_FN(layer_norm));
  m.impl("layer_norm_residual", TORCH_FN(layer_norm_residual));
  m.impl("rms_norm", TORCH_FN(rms_norm));
  m.impl("rms_norm_residual", TORCH_FN(rms_norm_residual));
  m.impl("bias_activation", TORCH_FN(bias_activation));
  m.impl("gated_activation", TORCH_FN(gated_activation));
  m.impl("residual_add_", TORCH_FN(residual_add_));
  m.impl("moe_residual_", TORCH_FN(moe_residual_));
  m.impl("dequantize_int8", TORCH_FN(dequantize_int8));
  m.impl("masked_softmax", TORCH_FN(masked_softmax));
  m.impl("cached_attention", TORCH_FN(attention));
  m.impl("rotary_", TORCH_FN(rotary_));
}

}  // namespace
}  // namespace ds

TORCH_LIBRARY_FRAGMENT(ds, m) {
  m.def("layer_norm(Tensor input, Tensor gamma, Tensor beta, float epsilon) -> Tensor");
  m.def(
      "layer_norm_residual(Tensor input, Tensor residual, Tensor? bias, Tensor gamma, Tensor beta, "
      "float epsilon) -> (Tensor, Tensor)");
  m.def("rms_norm(Tensor input, Tensor gamma, float epsilon) -> Tensor");
  m.def(
      "rms_norm_residual(Tensor input, Tensor residual, Tensor gamma, float epsilon) -> "
      "(Tensor, Tensor)");
  m.def("bias_activation(Tensor input, Tensor? bias, str activation) -> Tensor");
  m.def("gated_activation(Tensor input, Tensor? bias, str activation) -> Tensor");
  m.def(
      "residual_add_(Tensor(a!) residual, Tensor hidden, Tensor? attention, "
      "Tensor? attention_bias, Tensor? bias, float scale, bool scale_attention) -> ()");
  m.def("moe_residual_(Tensor(a!) output, Tensor residual, Tensor coefficients) -> ()");
  m.def("dequantize_int8(Tensor weight, Tensor scales, ScalarType dtype) -> Tensor");
  m.def(
      "masked_softmax(Tensor scores, Tensor? mask, Tensor? alibi, float scale=1.0, "
      "bool causal=False, int window=0) -> Tensor");
  m.def(
      "cached_attention(Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor? alibi, "
      "float scale, bool causal=False, int window=0) -> Tensor");
  m.def(
      "rotary_(Tensor(a!) x, Tensor? positions, int offset, int rotary_dim, bool rotate_half, "
      "float theta=10000.0) -> ()");
}

DS_LIBRARY_IMPL_FOR_DEVICES(ds::implement)

TORCH_LIBRARY_IMPL(ds, Meta, m) {
  ds::implement(m);
}

// torch 1.13 knows no way from here to Meta.
TORCH_LIBRARY_IMPL(ds, AutogradMeta, m) {
  for (const char* name : {"layer_norm", "layer_norm_residual", "rms_norm", "rms_norm_residual",
                           "bias_activation", "gated_activation", "residual_add_", "moe_residual_",
                           "dequantize_int8", "masked_softmax", "cached_attention", "rotary_"}) {
    m.impl(name, torch::CppFunction::makeFallthrough());
  }
}

// torch.ops.ds.token_sort_, token_gather, token_scatter, token_scatter_, mask_gather_bert and
// mask_gather_gpt; see random_ltd.h for what they compute. Activations are [N, S, C] or [S, N, C],
// indices int32 [N, kept]; gathers and scatters can be differentiated.

#include "bind_devices.h"

#include <torch/csrc/autograd/custom_function.h>

#include "random_ltd.h"

namespace ds {
namespace {

constexpr const char* kSort = "ds::token_sort_";
constexpr const char* kGather = "ds::token_gather";
constexpr const char* kScatter = "ds::token_scatter";
constexpr const char* kScatterInPlace = "ds::token_scatter_";
constexpr const char* kBert = "ds::mask_gather_bert";
constexpr const char* kGpt = "ds::mask_gather_gpt";

void check_indices(const char* name, const at::Tensor& indices, std::int64_t dim,
                   const at::Tensor& beside) {
  TORCH_CHECK(indices.dim() == dim && indices.scalar_type() == at::kInt &&
                  indices.device() == beside.device(),
              name, ": the indices must be int32 of ", dim, " dimensions on ", beside.device(),
              ": ", binding::describe(indices));
}

// --- token_sort_ --------------------------------------------------------------------------------

void check_sort(const at::Tensor& ids, std::int64_t tokens) {
  TORCH_CHECK(ids.dim() >= 1 && ids.scalar_type() == at::kInt, kSort,
              ": the ids must be int32 of at least one dimension: ", binding::describe(ids));
  TORCH_CHECK(
      ids.is_contiguous(), kSort,
      ": the ids are not contiguous, so they cannot be sorted in place: ", binding::describe(ids));
  TORCH_CHECK(tokens >= 0, kSort, ": the number of tokens is ", tokens);
}
void sort_ids(const at::Tensor& ids, std::int64_t tokens) {
  check_sort(ids, tokens);
  if (ids.numel() == 0) return;
  const at::Tensor before = tokens > kTokenSortInPlace ? ids.clone() : ids;
  const std::int64_t size = ids.size(-1);
  const TokenSort call{static_cast<const std::int32_t*>(before.data_ptr()),
                       static_cast<std::int32_t*>(ids.data_ptr()), ids.numel() / size, size,
                       tokens};
  binding::on_device_of(ids, [&](const auto& options) { token_sort(call, options); });
  binding::bump_versions({{"ids", ids}});
}
void sort_meta(const at::Tensor& ids, std::int64_t tokens) {
  check_sort(ids, tokens);
}

// --- Rows ---------------------------------------------------------------------------------------

void check_activations(const char* name, const char* what, const at::Tensor& activations,
                       const at::Tensor& indices, bool batch_first) {
  TORCH_CHECK(activations.dim() == 3, name, ": ", what, " must be ",
              batch_first ? "[N, S, C]: " : "[S, N, C]: ", binding::describe(activations));
  check_indices(name, indices, 2, activations);
  const std::int64_t batch = activations.size(batch_first ? 0 : 1);
  TORCH_CHECK(indices.size(0) == batch, name, ": there are indices for ", indices.size(0),
              " sequences and ", what, " of ", batch);
}

std::vector<std::int64_t> kept_shape(const at::Tensor& activations, const at::Tensor& indices,
                                     bool batch_first) {
  const std::int64_t batch = indices.size(0), kept = indices.size(1),
                     channels = activations.size(2);
  return batch_first ? std::vector<std::int64_t>{batch, kept, channels}
                     : std::vector<std::int64_t>{kept, batch, channels};
}

void check_scatter(const char* name, const at::Tensor& all, const at::Tensor& layer,
                   const at::Tensor& indices, bool batch_first) {
  check_activations(name, "all_activations", all, indices, batch_first);
  TORCH_CHECK(layer.device() == all.device() && layer.scalar_type() == all.scalar_type(), name,
              ": layer_activations must have the device and dtype of all_activations: ",
              binding::describe(layer), " and ", binding::describe(all));
  TORCH_CHECK(layer.sizes() == at::IntArrayRef(kept_shape(all, indices, batch_first)), name,
              ": layer_activations must be of the kept tokens of all_activations, ",
              at::IntArrayRef(kept_shape(all, indices, batch_first)), ": ",
              binding::describe(layer));
}

// `all` and `kept` have dense channels; any strides of sequences and tokens.
TokenRows rows_of(const at::Tensor& all, const at::Tensor& kept, const at::Tensor& indices,
                  bool batch_first) {
  const int batch_dim = batch_first ? 0 : 1, token_dim = batch_first ? 1 : 0;
  const std::int64_t size = all.element_size();
  TokenRows rows{};
  rows.all = all.data_ptr();
  rows.kept_rows = kept.data_ptr();
  rows.indices = static_cast<const std::int32_t*>(indices.data_ptr());
  rows.batch = indices.size(0);
  rows.tokens = all.size(token_dim);
  rows.kept = indices.size(1);
  rows.row_bytes = all.size(2) * size;
  rows.all_batch_stride = all.stride(batch_dim) * size;
  rows.all_token_stride = all.stride(token_dim) * size;
  rows.kept_batch_stride = kept.stride(batch_dim) * size;
  rows.kept_token_stride = kept.stride(token_dim) * size;
  return rows;
}

at::Tensor dense_channels(const at::Tensor& t) {
  return t.stride(2) == 1 || t.size(2) <= 1 ? t : t.contiguous();
}

at::Tensor gather_meta(const at::Tensor& activations, const at::Tensor& indices, bool batch_first) {
  check_activations(kGather, "activations", activations, indices, batch_first);
  return at::empty(kept_shape(activations, indices, batch_first), activations.options());
}
at::Tensor gather(const at::Tensor& activations, const at::Tensor& indices, bool batch_first) {
  at::Tensor out = gather_meta(activations, indices, batch_first);
  if (out.numel() == 0) return out;
  const at::Tensor all = dense_channels(activations), dense_indices = indices.contiguous();
  const TokenRows rows = rows_of(all, out, dense_indices, batch_first);
  binding::on_device_of(all, [&](const auto& options) { token_gather(rows, options); });
  return out;
}

void scatter_into_meta(const at::Tensor& all, const at::Tensor& layer, const at::Tensor& indices,
                       bool batch_first) {
  check_scatter(kScatterInPlace, all, layer, indices, batch_first);
  TORCH_CHECK(all.size(2) <= 1 || all.stride(2) == 1, kScatterInPlace,
              ": the channels of all_activations are not dense, so they cannot be written in "
              "place: ",
              binding::describe(all));
}
void scatter_into(const at::Tensor& all, const at::Tensor& layer, const at::Tensor& indices,
                  bool batch_first) {
  scatter_into_meta(all, layer, indices, batch_first);
  if (layer.numel() == 0) return;
  const at::Tensor kept = dense_channels(layer), dense_indices = indices.contiguous();
  const TokenRows rows = rows_of(all, kept, dense_indices, batch_first);
  binding::on_device_of(all, [&](const auto& options) { token_scatter(rows, options); });
  binding::bump_versions({{"all_activations", all}});
}

at::Tensor scatter_meta(const at::Tensor& all, const at::Tensor& layer, const at::Tensor& indices,
                        bool batch_first) {
  check_scatter(kScatter, all, layer, indices, batch_first);
  return at::empty(all.sizes(), all.options());
}
at::Tensor scatter(const at::Tensor& all, const at::Tensor& layer, const at::Tensor& indices,
                   bool batch_first) {
  check_scatter(kScatter, all, layer, indices, batch_first);
  at::Tensor out = all.clone(at::MemoryFormat::Contiguous);
  if (layer.numel() == 0) return out;
  const at::Tensor kept = dense_channels(layer), dense_indices = indices.contiguous();
  const TokenRows rows = rows_of(out, kept, dense_indices, batch_first);
  binding::on_device_of(out, [&](const auto& options) { token_scatter(rows, options); });
  return out;
}

// --- Masks --------------------------------------------------------------------------------------

void check_mask(const char* name, const at::Tensor& mask) {
  TORCH_CHECK(mask.dim() == 4 && mask.size(1) == 1 && mask.size(2) == mask.size(3), name,
              ": the mask must be [N, 1, S, S]: ", binding::describe(mask));
  const std::int64_t size = mask.element_size();
  TORCH_CHECK(size == 1 || size == 2 || size == 4 || size == 8, name,
              ": an element of the mask has 1, 2, 4 or 8 bytes: ", binding::describe(mask));
}

at::Tensor bert_meta(const at::Tensor& mask, const at::Tensor& indices) {
  check_mask(kBert, mask);
  check_indices(kBert, indices, 3, mask);
  TORCH_CHECK(indices.size(1) == mask.size(0), kBert, ": there are indices for ", indices.size(1),
              " sequences and a mask of ", mask.size(0));
  return at::empty({indices.size(0), indices.size(1), 1, indices.size(2), indices.size(2)},
                   mask.options());
}
at::Tensor bert(const at::Tensor& mask, const at::Tensor& indices) {
  at::Tensor out = bert_meta(mask, indices);
  if (out.numel() == 0) return out;
  const at::Tensor dense = mask.contiguous(), dense_indices = indices.contiguous();
  const MaskGather call{
      dense.data_ptr(), static_cast<const std::int32_t*>(dense_indices.data_ptr()),
      out.data_ptr(),   indices.size(0),
      indices.size(1),  mask.size(3),
      indices.size(2),  static_cast<int>(mask.element_size())};
  binding::on_device_of(mask, [&](const auto& options) { mask_gather(call, options); });
  return out;
}

at::Tensor gpt_meta(const at::Tensor& mask, std::int64_t kept) {
  check_mask(kGpt, mask);
  TORCH_CHECK(kept >= 0 && kept <= mask.size(3), kGpt, ": the first ", kept, " of ", mask.size(3),
              " tokens are asked for");
  return at::empty({mask.size(0), 1, kept, kept}, mask.options());
}
at::Tensor gpt(const at::Tensor& mask, std::int64_t kept) {
  at::Tensor out = gpt_meta(mask, kept);
  if (out.numel() == 0) return out;
  const at::Tensor dense = mask.contiguous();
  const std::int64_t size = mask.element_size(), tokens = mask.size(3);
  TokenRows rows{};
  rows.all = dense.data_ptr();
  rows.kept_rows = out.data_ptr();
  rows.batch = mask.size(0);
  rows.tokens = tokens;
  rows.kept = kept;
  rows.row_bytes = kept * size;
  rows.all_batch_stride = tokens * tokens * size;
  rows.all_token_stride = tokens * size;
  rows.kept_batch_stride = kept * kept * size;
  rows.kept_token_stride = kept * size;
  binding::on_device_of(mask, [&](const auto& options) { token_gather(rows, options); });
  return out;
}

// --- Autograd -----------------------------------------------------------------------------------

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor call_gather(const at::Tensor& activations, const at::Tensor& indices, bool batch_first) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(kGather, "");
  return op.typed<at::Tensor(const at::Tensor&, const at::Tensor&, bool)>().call(
      activations, indices, batch_first);
}
at::Tensor call_scatter(const at::Tensor& all, const at::Tensor& layer, const at::Tensor& indices,
                        bool batch_first) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(kScatter, "");
  return op.typed<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, bool)>().call(
      all, layer, indices, batch_first);
}

// The gradient of a gather: what came out, where it came from. For indices that are distinct, as
// those of a sample are.
struct Gather : torch::autograd::Function<Gather> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& activations,
                            const at::Tensor& indices, bool batch_first) {
    context->save_for_backward({indices});
    context->saved_data["batch_first"] = batch_first;
    context->saved_data["tokens"] = activations.size(batch_first ? 1 : 0);
    const at::AutoDispatchBelowADInplaceOrView below;
    return call_gather(activations, indices, batch_first);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const at::Tensor indices = context->get_saved_variables()[0];
    const bool batch_first = context->saved_data["batch_first"].toBool();
    std::vector<std::int64_t> shape = grads[0].sizes().vec();
    shape[batch_first ? 1 : 0] = context->saved_data["tokens"].toInt();
    return {call_scatter(at::zeros(shape, grads[0].options()), grads[0], indices, batch_first),
            at::Tensor(), at::Tensor()};
  }
};

// And of a scatter: what was overwritten has none.
struct Scatter : torch::autograd::Function<Scatter> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& all,
                            const at::Tensor& layer, const at::Tensor& indices, bool batch_first) {
    context->save_for_backward({indices});
    context->saved_data["batch_first"] = batch_first;
    const at::AutoDispatchBelowADInplaceOrView below;
    return call_scatter(all, layer, indices, batch_first);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const at::Tensor indices = context->get_saved_variables()[0];
    const bool batch_first = context->saved_data["batch_first"].toBool();
    const at::Tensor of_layer = call_gather(grads[0], indices, batch_first);
    return {call_scatter(grads[0], at::zeros_like(of_layer), indices, batch_first), of_layer,
            at::Tensor(), at::Tensor()};
  }
};

at::Tensor gather_autograd(const at::Tensor& activations, const at::Tensor& indices,
                           bool batch_first) {
  return Gather::apply(activations, indices, batch_first);
}
at::Tensor scatter_autograd(const at::Tensor& all, const at::Tensor& layer,
                            const at::Tensor& indices, bool batch_first) {
  return Scatter::apply(all, layer, indices, batch_first);
}
// In place: where a gradient is wanted, through the one above and a copy that autograd knows.
void scatter_into_autograd(const at::Tensor& all, const at::Tensor& layer,
                           const at::Tensor& indices, bool batch_first) {
  if (at::GradMode::is_enabled() && (all.requires_grad() || layer.requires_grad())) {
    at::Tensor(all).copy_(call_scatter(all, layer, indices, batch_first));
    return;
  }
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(kScatterInPlace, "");
  const at::AutoDispatchBelowADInplaceOrView below;
  op.typed<void(const at::Tensor&, const at::Tensor&, const at::Tensor&, bool)>().call(
      all, layer, indices, batch_first);
}

void implement(torch::Library& m) {
  m.impl("token_sort_", TORCH_FN(sort_ids));
  m.impl("token_gather", TORCH_FN(gather));
  m.impl("token_scatter", TORCH_FN(scatter));
  m.impl("token_scatter_", TORCH_FN(scatter_into));
  m.impl("mask_gather_bert", TORCH_FN(bert));
  m.impl("mask_gather_gpt", TORCH_FN(gpt));
}

}  // namespace
}  // namespace ds

TORCH_LIBRARY_FRAGMENT(ds, m) {
  m.def("token_sort_(Tensor(a!) ids, int tokens) -> ()");
  m.def("token_gather(Tensor activations, Tensor indices, bool batch_first) -> Tensor");
  m.def(
      "token_scatter(Tensor all_activations, Tensor layer_activations, Tensor indices, "
      "bool batch_first) -> Tensor");
  m.def(
      "token_scatter_(Tensor(a!) all_activations, Tensor layer_activations, Tensor indices, "
      "bool batch_first) -> ()");
  m.def("mask_gather_bert(Tensor mask, Tensor indices) -> Tensor");
  m.def("mask_gather_gpt(Tensor mask, int kept) -> Tensor");
}

DS_LIBRARY_IMPL_FOR_DEVICES(ds::implement)

// For torch.compile and fake tensors: the same errors, no arithmetic.
TORCH_LIBRARY_IMPL(ds, Meta, m) {
  m.impl("token_sort_", TORCH_FN(ds::sort_meta));
  m.impl("token_gather", TORCH_FN(ds::gather_meta));
  m.impl("token_scatter", TORCH_FN(ds::scatter_meta));
  m.impl("token_scatter_", TORCH_FN(ds::scatter_into_meta));
  m.impl("mask_gather_bert", TORCH_FN(ds::bert_meta));
  m.impl("mask_gather_gpt", TORCH_FN(ds::gpt_meta));
}

TORCH_LIBRARY_IMPL(ds, Autograd, m) {
  m.impl("token_gather", TORCH_FN(ds::gather_autograd));
  m.impl("token_scatter", TORCH_FN(ds::scatter_autograd));
  m.impl("token_scatter_", TORCH_FN(ds::scatter_into_autograd));
}

// torch 1.13 knows no way from here to Meta.
TORCH_LIBRARY_IMPL(ds, AutogradMeta, m) {
  for (const char* name : {"token_sort_", "mask_gather_bert", "mask_gather_gpt"}) {
    m.impl(name, torch::CppFunction::makeFallthrough());
  }
}

// torch.ops.ds.quantize and its relatives; see quantizer.h for what they compute.

#include <limits>
#include <tuple>
#include <vector>

#include "bind_groups.h"
#include "quantizer.h"

namespace ds {
namespace {

using binding::check_bytes;
using binding::check_floating;
using binding::check_in_place;
using binding::check_same_device;
using binding::check_size;
using OptionalTensor = c10::optional<at::Tensor>;
using Pair = std::tuple<at::Tensor, at::Tensor>;

void check_format(const char* function, std::int64_t bits) {
  TORCH_CHECK(bits == 8 || bits == 4, function, ": bits must be 8 or 4, it is ", bits);
}

std::int64_t params_of(std::int64_t groups, bool symmetric) {
  return symmetric ? groups : 2 * groups;
}

// The input's shape with its last dimension as bytes of codes.
std::vector<std::int64_t> code_shape(const char* function, const at::Tensor& input,
                                     std::int64_t bits) {
  auto shape = input.sizes().vec();
  TORCH_CHECK(!shape.empty(), function, ": input must have at least one dimension");
  TORCH_CHECK(bits == 8 || shape.back() % 2 == 0, function,
              ": with 4 bits two elements share a byte, so the last dimension must be even: ",
              binding::describe(input));
  if (bits == 4) shape.back() /= 2;
  return shape;
}

// --- quantize, swizzled and with error feedback -------------------------------------------------

struct Quantized {
  at::Tensor codes, params;
  std::int64_t group_size;
};

Quantized prepare(const char* function, const at::Tensor& input, std::int64_t groups,
                  std::int64_t bits, bool symmetric, bool flat) {
  check_format(function, bits);
  check_floating(function, "input", input);
  Quantized q;
  q.group_size = binding::group_size_of(function, "input", input.numel(), groups);
  std::vector<std::int64_t> shape;
  if (flat) {
    shape = {input.numel() * bits / 8};
  } else {
    shape = code_shape(function, input, bits);
  }
  q.codes = at::empty(shape, input.options().dtype(at::kChar));
  q.params = at::empty({groups, symmetric ? 1 : 2}, input.options().dtype(at::kFloat));
  return q;
}

void run(const at::Tensor& input, const Quantized& q, std::int64_t groups, std::int64_t bits,
         bool symmetric, const Swizzle& swizzle, const at::Tensor* error, double beta) {
  const at::Tensor dense = input.contiguous();
  QuantizeCall call;
  call.input = dense.data_ptr();
  call.dtype = binding::dtype_of(dense);
  call.groups = groups;
  call.group_size = q.group_size;
  call.format = {static_cast<int>(bits), symmetric};
  call.codes = static_cast<std::uint8_t*>(q.codes.data_ptr());
  call.params = static_cast<float*>(q.params.data_ptr());
  call.swizzle = swizzle;
  if (error != nullptr) {
    call.error = error->data_ptr();
    call.error_beta = static_cast<float>(beta);
  }
  binding::on_stream_of(dense, [&](const auto& where) { quantize(call, where); });
}

Pair quantize_real(const at::Tensor& input, std::int64_t groups, std::int64_t bits,
                   bool symmetric) {
  const Quantized q = prepare("ds::quantize", input, groups, bits, symmetric, false);
  run(input, q, groups, bits, symmetric, {}, nullptr, 0.0);
  return {q.codes, q.params};
}
Pair quantize_meta(const at::Tensor& input, std::int64_t groups, std::int64_t bits,
                   bool symmetric) {
  const Quantized q = prepare("ds::quantize", input, groups, bits, symmetric, false);
  return {q.codes, q.params};
}

Quantized prepare_swizzled(const char* function, const at::Tensor& input, std::int64_t groups,
                           std::int64_t bits, bool symmetric, const Swizzle& s) {
  TORCH_CHECK(s.pipeline > 0 && s.nodes > 0 && s.devices > 0, function,
              ": pipeline_size, nodes and devices_per_node must be positive");
  TORCH_CHECK(groups % (s.pipeline * s.nodes * s.devices) == 0, function, ": ", groups,
              " groups do not make ", s.pipeline, " slices of ", s.nodes, "x", s.devices,
              " equal partitions");
  return prepare(function, input, groups, bits, symmetric, true);
}

Pair swizzle_real(const at::Tensor& input, std::int64_t groups, std::int64_t bits, bool symmetric,
                  std::int64_t pipeline, std::int64_t nodes, std::int64_t devices) {
  const Swizzle swizzle{pipeline, nodes, devices};
  const Quantized q =
      prepare_swizzled("ds::swizzle_quant", input, groups, bits, symmetric, swizzle);
  run(input, q, groups, bits, symmetric, swizzle, nullptr, 0.0);
  return {q.codes, q.params};
}
Pair swizzle_meta(const at::Tensor& input, std::int64_t groups, std::int64_t bits, bool symmetric,
                  std::int64_t pipeline, std::int64_t nodes, std::int64_t devices) {
  const Quantized q = prepare_swizzled("ds::swizzle_quant", input, groups, bits, symmetric,
                                       {pipeline, nodes, devices});
  return {q.codes, q.params};
}

Quantized prepare_loco(const at::Tensor& input, const at::Tensor& error, std::int64_t groups,
                       std::int64_t bits, bool symmetric, const Swizzle& swizzle) {
  constexpr const char* kName = "ds::loco_swizzle_quant";
  check_size(kName, "error_feedback", error, input.scalar_type(), input.numel());
  check_in_place(kName, "error_feedback", error);
  check_same_device(kName, "error_feedback", error, input);
  return prepare_swizzled(kName, input, groups, bits, symmetric, swizzle);
}
Pair loco_real(const at::Tensor& input, const at::Tensor& error, double beta, std::int64_t groups,
               std::int64_t bits, bool symmetric, std::int64_t pipeline, std::int64_t nodes,
               std::int64_t devices) {
  const Swizzle swizzle{pipeline, nodes, devices};
  const Quantized q = prepare_loco(input, error, groups, bits, symmetric, swizzle);
  run(input, q, groups, bits, symmetric, swizzle, &error, beta);
  binding::changed(error);
  return {q.codes, q.params};
}
Pair loco_meta(const at::Tensor& input, const at::Tensor& error, double, std::int64_t groups,
               std::int64_t bits, bool symmetric, std::int64_t pipeline, std::int64_t nodes,
               std::int64_t devices) {
  const Quantized q =
      prepare_loco(input, error, groups, bits, symmetric, {pipeline, nodes, devices});
  return {q.codes, q.params};
}

// --- dequantize ---------------------------------------------------------------------------------

at::Tensor prepare_dequantized(const at::Tensor& codes, const at::Tensor& params,
                               std::int64_t groups, std::int64_t bits, bool symmetric,
                               at::ScalarType dtype) {
  constexpr const char* kName = "ds::dequantize";
  check_format(kName, bits);
  check_bytes(kName, "codes", codes);
  check_size(kName, "params", params, at::kFloat, params_of(groups, symmetric));
  check_same_device(kName, "params", params, codes);
  auto shape = codes.sizes().vec();
  TORCH_CHECK(!shape.empty(), kName, ": codes must have at least one dimension");
  shape.back() *= 8 / bits;
  binding::group_size_of(kName, "the output", codes.numel() * (8 / bits), groups);
  const at::Tensor output = at::empty(shape, codes.options().dtype(dtype));
  check_floating(kName, "the output", output);
  return output;
}
at::Tensor dequantize_real(const at::Tensor& codes, const at::Tensor& params, std::int64_t groups,
                           std::int64_t bits, bool symmetric, at::ScalarType dtype) {
  const at::Tensor output = prepare_dequantized(codes, params, groups, bits, symmetric, dtype);
  const at::Tensor dense = codes.contiguous(), dense_params = params.contiguous();
  DequantizeCall call;
  call.codes = static_cast<const std::uint8_t*>(dense.data_ptr());
  call.params = static_cast<const float*>(dense_params.data_ptr());
  call.output = output.data_ptr();
  call.dtype = binding::dtype_of(output);
  call.groups = groups;
  call.group_size = groups == 0 ? 0 : output.numel() / groups;
  call.format = {static_cast<int>(bits), symmetric};
  binding::on_stream_of(dense, [&](const auto& where) { dequantize(call, where); });
  return output;
}

// --- fake_quantize_ -----------------------------------------------------------------------------

std::int64_t prepare_fake(const at::Tensor& values, std::int64_t groups, std::int64_t bits) {
  constexpr const char* kName = "ds::fake_quantize_";
  TORCH_CHECK(bits >= 2 && bits <= 16, kName, ": bits must be from 2 to 16, it is ", bits);
  check_floating(kName, "values", values);
  check_in_place(kName, "values", values);
  return binding::group_size_of(kName, "values", values.numel(), groups);
}
void fake_real(const at::Tensor& values, std::int64_t groups, std::int64_t bits, bool symmetric,
               bool stochastic, std::int64_t seed, std::int64_t offset,
               const OptionalTensor& random_state) {
  FakeQuantizeCall call;
  call.group_size = prepare_fake(values, groups, bits);
  call.values = values.data_ptr();
  call.dtype = binding::dtype_of(values);
  call.groups = groups;
  call.bits = static_cast<int>(bits);
  call.symmetric = symmetric;
  call.stochastic = stochastic;
  call.random = binding::random_source("ds::fake_quantize_", seed, offset, random_state, values);
#ifdef DS_WITH_CUDA
  at::Tensor scratch;
  if (values.is_cuda() && fake_quantize_needs_scratch(call)) {
    scratch = at::empty({2 * groups}, values.options().dtype(at::kInt));
    call.scratch = static_cast<std::uint32_t*>(scratch.data_ptr());
  }
#endif
  binding::on_stream_of(values, [&](const auto& where) { fake_quantize(call, where); });
  binding::changed(values);
}
void fake_meta(const at::Tensor& values, std::int64_t groups, std::int64_t bits, bool, bool,
               std::int64_t, std::int64_t, const OptionalTensor&) {
  prepare_fake(values, groups, bits);
}

// --- quantized_reduction ------------------------------------------------------------------------

struct Reduced {
  at::Tensor codes, params;
};
Reduced prepare_reduced(const char* function, const at::Tensor& codes, const at::Tensor& params,
                        std::int64_t in_groups, std::int64_t out_groups, std::int64_t bits,
                        bool symmetric, std::int64_t tensors, const at::Tensor* error) {
  check_format(function, bits);
  check_bytes(function, "codes", codes);
  check_same_device(function, "params", params, codes);
  check_size(function, "params", params, at::kFloat, params_of(in_groups, symmetric));
  TORCH_CHECK(tensors > 0 && in_groups % tensors == 0, function, ": in_groups (", in_groups,
              ") must be a multiple of devices_per_node (", tensors, ")");
  auto shape = codes.sizes().vec();
  TORCH_CHECK(!shape.empty() && shape.back() % tensors == 0, function,
              ": the last dimension of codes must be a multiple of devices_per_node (", tensors,
              "): ", binding::describe(codes));
  shape.back() /= tensors;
  const std::int64_t size = codes.numel() / tensors * (8 / bits);
  binding::group_size_of(function, "each tensor", size, in_groups / tensors);
  binding::group_size_of(function, "the result", size, out_groups);
  if (error != nullptr) {
    check_floating(function, "error_feedback", *error);
    check_size(function, "error_feedback", *error, error->scalar_type(), size);
    check_in_place(function, "error_feedback", *error);
    check_same_device(function, "error_feedback", *error, codes);
  }
  return {at::empty(shape, codes.options().dtype(at::kChar)),
          at::empty({out_groups, symmetric ? 1 : 2}, codes.options().dtype(at::kFloat))};
}
void run_reduction(const Reduced& out, const at::Tensor& codes, const at::Tensor& params,
                   std::int64_t in_groups, std::int64_t out_groups, std::int64_t bits,
                   bool symmetric, std::int64_t tensors, const at::Tensor* error, double beta) {
  const at::Tensor dense = codes.contiguous(), dense_params = params.contiguous();
  ReduceCall call;
  call.codes = static_cast<const std::uint8_t*>(dense.data_ptr());
  call.params = static_cast<const float*>(dense_params.data_ptr());
  call.tensors = tensors;
  call.size = codes.numel() / tensors * (8 / bits);
  call.in_groups = in_groups / tensors;
  call.out_groups = out_groups;
  call.format = {static_cast<int>(bits), symmetric};
  call.out_codes = static_cast<std::uint8_t*>(out.codes.data_ptr());
  call.out_params = static_cast<float*>(out.params.data_ptr());
  if (error != nullptr) {
    call.error = error->data_ptr();
    call.error_dtype = binding::dtype_of(*error);
    call.error_beta = static_cast<float>(beta);
  }
  binding::on_stream_of(dense, [&](const auto& where) { quantized_reduce(call, where); });
}

Pair reduce_real(const at::Tensor& codes, const at::Tensor& params, std::int64_t in_groups,
                 std::int64_t out_groups, std::int64_t bits, bool symmetric, std::int64_t tensors) {
  const Reduced out = prepare_reduced("ds::quantized_reduction", codes, params, in_groups,
                                      out_groups, bits, symmetric, tensors, nullptr);
  run_reduction(out, codes, params, in_groups, out_groups, bits, symmetric, tensors, nullptr, 0.0);
  return {out.codes, out.params};
}
Pair reduce_meta(const at::Tensor& codes, const at::Tensor& params, std::int64_t in_groups,
                 std::int64_t out_groups, std::int64_t bits, bool symmetric, std::int64_t tensors) {
  const Reduced out = prepare_reduced("ds::quantized_reduction", codes, params, in_groups,
                                      out_groups, bits, symmetric, tensors, nullptr);
  return {out.codes, out.params};
}
Pair loco_reduce_real(const at::Tensor& codes, const at::Tensor& params, const at::Tensor& error,
                      double beta, std::int64_t in_groups, std::int64_t out_groups,
                      std::int64_t bits, bool symmetric, std::int64_t tensors) {
  const Reduced out = prepare_reduced("ds::loco_quantized_reduction", codes, params, in_groups,
                                      out_groups, bits, symmetric, tensors, &error);
  run_reduction(out, codes, params, in_groups, out_groups, bits, symmetric, tensors, &error, beta);
  binding::changed(error);
  return {out.codes, out.params};
}
Pair loco_reduce_meta(const at::Tensor& codes, const at::Tensor& params, const at::Tensor& error,
                      double, std::int64_t in_groups, std::int64_t out_groups, std::int64_t bits,
                      bool symmetric, std::int64_t tensors) {
  const Reduced out = prepare_reduced("ds::loco_quantized_reduction", codes, params, in_groups,
                                      out_groups, bits, symmetric, tensors, &error);
  return {out.codes, out.params};
}

// --- int4 and int8 to half ----------------------------------------------------------------------

at::Tensor prepare_half(const at::Tensor& codes, const at::Tensor& scales,
                        const at::Tensor& minimums, std::int64_t groups, std::int64_t group_size,
                        std::int64_t bits) {
  constexpr const char* kName = "ds::dequantize_int_to_half";
  check_format(kName, bits);
  check_bytes(kName, "codes", codes);
  TORCH_CHECK(groups >= 0 && group_size >= 0, kName, ": sizes must not be negative");
  TORCH_CHECK(codes.numel() * (8 / bits) == groups * group_size, kName, ": ", codes.numel(),
              " bytes of codes are not ", groups, " groups of ", group_size);
  check_size(kName, "scales", scales, at::kHalf, groups);
  check_size(kName, "minimums", minimums, at::kHalf, groups);
  check_same_device(kName, "scales", scales, codes);
  check_same_device(kName, "minimums", minimums, codes);
  return at::empty({groups, group_size}, codes.options().dtype(at::kHalf));
}
at::Tensor half_real(const at::Tensor& codes, const at::Tensor& scales, const at::Tensor& minimums,
                     std::int64_t groups, std::int64_t group_size, std::int64_t bits) {
  const at::Tensor output = prepare_half(codes, scales, minimums, groups, group_size, bits);
  const at::Tensor dense = codes.contiguous(), s = scales.contiguous(), m = minimums.contiguous();
  const IntToHalfCall call{static_cast<const std::uint8_t*>(dense.data_ptr()),
                           static_cast<const std::uint16_t*>(s.data_ptr()),
                           static_cast<const std::uint16_t*>(m.data_ptr()),
                           static_cast<std::uint16_t*>(output.data_ptr()),
                           groups,
                           group_size,
                           static_cast<int>(bits)};
  binding::on_stream_of(dense, [&](const auto& where) { int_to_half(call, where); });
  return output;
}

void implement(torch::Library& m) {
  m.impl("quantize", TORCH_FN(quantize_real));
  m.impl("dequantize", TORCH_FN(dequantize_real));
  m.impl("fake_quantize_", TORCH_FN(fake_real));
  m.impl("swizzle_quant", TORCH_FN(swizzle_real));
  m.impl("loco_swizzle_quant", TORCH_FN(loco_real));
  m.impl("quantized_reduction", TORCH_FN(reduce_real));
  m.impl("loco_quantized_reduction", TORCH_FN(loco_reduce_real));
  m.impl("dequantize_int_to_half", TORCH_FN(half_real));
}

}  // namespace
}  // namespace ds

static_assert(static_cast<int>(at::kHalf) == 5);

TORCH_LIBRARY_FRAGMENT(ds, m) {
  m.def("quantize(Tensor input, int groups, int bits=8, bool symmetric=True) -> (Tensor, Tensor)");
  // 5 is half, which torch 1.13 does not know by its name here.
  m.def(
      "dequantize(Tensor codes, Tensor params, int groups, int bits=8, bool symmetric=True, "
      "ScalarType dtype=5) -> Tensor");
  m.def(
      "fake_quantize_(Tensor(a!) values, int groups, int bits=8, bool symmetric=True, "
      "bool stochastic=False, int seed=0, int offset=0, Tensor? random_state=None) -> ()");
  m.def(
      "swizzle_quant(Tensor input, int groups, int bits, bool symmetric, int pipeline_size, "
      "int nodes, int devices_per_node) -> (Tensor, Tensor)");
  m.def(
      "loco_swizzle_quant(Tensor input, Tensor(a!) error_feedback, float err_beta, int groups, "
      "int bits, bool symmetric, int pipeline_size, int nodes, int devices_per_node) "
      "-> (Tensor, Tensor)");
  m.def(
      "quantized_reduction(Tensor codes, Tensor params, int in_groups, int out_groups, int bits, "
      "bool symmetric, int devices_per_node) -> (Tensor, Tensor)");
  m.def(
      "loco_quantized_reduction(Tensor codes, Tensor params, Tensor(a!) error_feedback, "
      "float err_beta, int in_groups, int out_groups, int bits, bool symmetric, "
      "int devices_per_node) -> (Tensor, Tensor)");
  m.def(
      "dequantize_int_to_half(Tensor codes, Tensor scales, Tensor minimums, int groups, "
      "int group_size, int bits) -> Tensor");
}

DS_LIBRARY_IMPL_FOR_DEVICES(ds::implement)

TORCH_LIBRARY_IMPL(ds, Meta, m) {
  m.impl("quantize", TORCH_FN(ds::quantize_meta));
  m.impl("dequantize", TORCH_FN(ds::prepare_dequantized));
  m.impl("fake_quantize_", TORCH_FN(ds::fake_meta));
  m.impl("swizzle_quant", TORCH_FN(ds::swizzle_meta));
  m.impl("loco_swizzle_quant", TORCH_FN(ds::loco_meta));
  m.impl("quantized_reduction", TORCH_FN(ds::reduce_meta));
  m.impl("loco_quantized_reduction", TORCH_FN(ds::loco_reduce_meta));
  m.impl("dequantize_int_to_half", TORCH_FN(ds::prepare_half));
}

// torch 1.13 knows no way from here to Meta.
TORCH_LIBRARY_IMPL(ds, AutogradMeta, m) {
  for (const char* name :
       {"quantize", "dequantize", "fake_quantize_", "swizzle_quant", "loco_swizzle_quant",
        "quantized_reduction", "loco_quantized_reduction", "dequantize_int_to_half"}) {
    m.impl(name, torch::CppFunction::makeFallthrough());
  }
}

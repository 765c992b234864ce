// torch.ops.ds.fp_quantize and its relatives; see fp_quantizer.h for what they compute.

#include "bind_groups.h"
#include "fp_quantizer.h"

namespace ds {
namespace {

using binding::check_bytes;
using binding::check_floating;
using binding::check_in_place;
using binding::check_same_device;
using binding::check_size;
using OptionalTensor = c10::optional<at::Tensor>;

FloatFormat format_of(const char* function, std::int64_t bits, std::int64_t mantissa) {
  const bool known = (bits == 12 && mantissa == 7) ||
                     (bits == 8 && (mantissa == 3 || mantissa == 2)) ||
                     (bits == 6 && mantissa == 2) || (bits == 4 && mantissa == 1);
  TORCH_CHECK(known, function, ": there is no format of ", bits, " bits with ", mantissa,
              " of mantissa; there are 12 with 7, 8 with 3 or 2, 6 with 2, 4 with 1");
  return {static_cast<int>(bits), static_cast<int>(mantissa)};
}

std::int64_t groups_of(const char* function, const at::Tensor& tensor, std::int64_t group_size,
                       const FloatFormat& format) {
  TORCH_CHECK(group_size > 0, function, ": group_size must be positive, it is ", group_size);
  TORCH_CHECK(group_size % 8 * format.bits % 8 == 0, function, ": a group of ", group_size,
              " codes of ", format.bits, " bits does not end on a byte");
  TORCH_CHECK(tensor.numel() % group_size == 0, function, ": ", tensor.numel(),
              " elements do not make groups of ", group_size);
  return tensor.numel() / group_size;
}

std::int64_t groups_of_rows(const char* function, const at::Tensor& rows, std::int64_t group_size,
                            const FloatFormat& format) {
  check_bytes(function, "rows", rows);
  TORCH_CHECK(group_size > 0 && group_size % 8 * format.bits % 8 == 0, function, ": a group of ",
              group_size, " codes of ", format.bits, " bits does not end on a byte");
  const std::int64_t pitch = fp_row_bytes(group_size, format);
  TORCH_CHECK(rows.numel() % pitch == 0, function, ": ", rows.numel(),
              " bytes do not make rows of ", pitch);
  return rows.numel() / pitch;
}

at::Tensor prepare_rows(const at::Tensor& input, std::int64_t group_size, std::int64_t bits,
                        std::int64_t mantissa) {
  constexpr const char* kName = "ds::fp_quantize";
  const FloatFormat format = format_of(kName, bits, mantissa);
  check_floating(kName, "input", input);
  const std::int64_t groups = groups_of(kName, input, group_size, format);
  return at::empty({groups, fp_row_bytes(group_size, format)}, input.options().dtype(at::kByte));
}
void check_rows(const at::Tensor& input, const at::Tensor& rows, std::int64_t group_size,
                std::int64_t bits, std::int64_t mantissa) {
  constexpr const char* kName = "ds::fp_quantize_";
  const FloatFormat format = format_of(kName, bits, mantissa);
  check_floating(kName, "input", input);
  const std::int64_t groups = groups_of(kName, input, group_size, format);
  check_bytes(kName, "rows", rows);
  check_in_place(kName, "rows", rows);
  check_same_device(kName, "rows", rows, input);
  TORCH_CHECK(rows.numel() == groups * fp_row_bytes(group_size, format), kName, ": rows must be ",
              groups, " rows of ", fp_row_bytes(group_size, format), " bytes; it is ",
              binding::describe(rows));
}
void quantize_into_real(const at::Tensor& input, const at::Tensor& rows, std::int64_t group_size,
                        std::int64_t bits, std::int64_t mantissa, bool stochastic,
                        std::int64_t seed, std::int64_t offset,
                        const OptionalTensor& random_state) {
  check_rows(input, rows, group_size, bits, mantissa);
  const at::Tensor dense = input.contiguous();
  FpQuantizeCall call;
  call.input = dense.data_ptr();
  call.dtype = binding::dtype_of(dense);
  call.groups = dense.numel() / group_size;
  call.group_size = group_size;
  call.format = {static_cast<int>(bits), static_cast<int>(mantissa)};
  call.stochastic = stochastic;
  call.random = binding::random_source("ds::fp_quantize_", seed, offset, random_state, input);
  call.rows = static_cast<std::uint8_t*>(rows.data_ptr());
  binding::on_stream_of(dense, [&](const auto& where) { fp_quantize(call, where); });
  binding::changed(rows);
}
void quantize_into_meta(const at::Tensor& input, const at::Tensor& rows, std::int64_t group_size,
                        std::int64_t bits, std::int64_t mantissa, bool, std::int64_t, std::int64_t,
                        const OptionalTensor&) {
  check_rows(input, rows, group_size, bits, mantissa);
}
at::Tensor quantize_real(const at::Tensor& input, std::int64_t group_size, std::int64_t bits,
                         std::int64_t mantissa, bool stochastic, std::int64_t seed,
                         std::int64_t offset, const OptionalTensor& random_state) {
  const at::Tensor rows = prepare_rows(input, group_size, bits, mantissa);
  quantize_into_real(input, rows, group_size, bits, mantissa, stochastic, seed, offset,
                     random_state);
  return rows;
}
at::Tensor quantize_meta(const at::Tensor& input, std::int64_t group_size, std::int64_t bits,
                         std::int64_t mantissa, bool, std::int64_t, std::int64_t,
                         const OptionalTensor& random_state) {
  if (random_state.has_value())
    check_size("ds::fp_quantize", "random_state", *random_state, at::kLong, 2);
  return prepare_rows(input, group_size, bits, mantissa);
}

void check_dequantize(const char* function, const at::Tensor& rows, const at::Tensor& output,
                      std::int64_t group_size, std::int64_t bits, std::int64_t mantissa) {
  const FloatFormat format = format_of(function, bits, mantissa);
  groups_of_rows(function, rows, group_size, format);
  check_floating(function, "output", output);
  check_in_place(function, "output", output);
  check_same_device(function, "output", output, rows);
  groups_of(function, output, group_size, format);
}

void dequantize_meta(const at::Tensor& rows, const at::Tensor& output, std::int64_t group_size,
                     std::int64_t bits, std::int64_t mantissa) {
  constexpr const char* kName = "ds::fp_dequantize_";
  check_dequantize(kName, rows, output, group_size, bits, mantissa);
  const FloatFormat format = format_of(kName, bits, mantissa);
  const std::int64_t groups = groups_of_rows(kName, rows, group_size, format);
  TORCH_CHECK(groups * group_size == output.numel(), kName, ": there are ", groups, " rows of ",
              group_size, " codes for an output of ", output.numel(), " elements");
}

FpDequantizeCall call_of(const at::Tensor& rows, const at::Tensor& output, std::int64_t group_size,
                         std::int64_t bits, std::int64_t mantissa) {
  FpDequantizeCall call;
  call.rows = static_cast<const std::uint8_t*>(rows.data_ptr());
  call.output = output.data_ptr();
  call.dtype = binding::dtype_of(output);
  call.group_size = group_size;
  call.format = {static_cast<int>(bits), static_cast<int>(mantissa)};
  call.groups = rows.numel() / fp_row_bytes(group_size, call.format);
  return call;
}

void dequantize_real(const at::Tensor& rows, const at::Tensor& output, std::int64_t group_size,
                     std::int64_t bits, std::int64_t mantissa) {
  dequantize_meta(rows, output, group_size, bits, mantissa);
  const at::Tensor dense = rows.contiguous();
  const FpDequantizeCall call = call_of(dense, output, group_size, bits, mantissa);
  binding::on_stream_of(dense, [&](const auto& where) { fp_dequantize(call, where); });
  binding::changed(output);
}

// Each index is one slab of the output, so its size says how many rows a slab has.
std::int64_t check_selection(const at::Tensor& rows, const at::Tensor& indexes,
                             const at::Tensor& output, std::int64_t group_size, std::int64_t bits,
                             std::int64_t mantissa) {
  constexpr const char* kName = "ds::fp_selective_dequantize_";
  check_dequantize(kName, rows, output, group_size, bits, mantissa);
  check_size(kName, "indexes", indexes, at::kInt, indexes.numel());
  check_same_device(kName, "indexes", indexes, rows);
  const std::int64_t count = indexes.numel();
  if (count == 0) return 1;
  const std::int64_t out_groups = output.numel() / group_size;
  TORCH_CHECK(out_groups % count == 0, kName, ": ", out_groups, " groups of output for ", count,
              " indexes");
  const std::int64_t slab = out_groups / count;
  const std::int64_t groups =
      groups_of_rows(kName, rows, group_size, format_of(kName, bits, mantissa));
  TORCH_CHECK(slab > 0 && groups % slab == 0, kName, ": ", groups, " rows do not make slabs of ",
              slab);
  return slab;
}
void select_meta(const at::Tensor& rows, const at::Tensor& indexes, const at::Tensor& output,
                 std::int64_t group_size, std::int64_t bits, std::int64_t mantissa) {
  check_selection(rows, indexes, output, group_size, bits, mantissa);
}
void select_real(const at::Tensor& rows, const at::Tensor& indexes, const at::Tensor& output,
                 std::int64_t group_size, std::int64_t bits, std::int64_t mantissa) {
  const std::int64_t slab = check_selection(rows, indexes, output, group_size, bits, mantissa);
  if (indexes.numel() == 0) return;
  const at::Tensor dense = rows.contiguous(), dense_indexes = indexes.contiguous();
  FpDequantizeCall call = call_of(dense, output, group_size, bits, mantissa);
  call.indexes = static_cast<const std::int32_t*>(dense_indexes.data_ptr());
  call.index_count = indexes.numel();
  call.groups_an_index = slab;
  binding::on_stream_of(dense, [&](const auto& where) { fp_dequantize(call, where); });
  binding::changed(output);
}

// A copy: rows may lie at any multiple of two bytes.
at::Tensor scales(const at::Tensor& rows, std::int64_t group_size, std::int64_t bits,
                  std::int64_t mantissa) {
  constexpr const char* kName = "ds::fp_scales";
  const FloatFormat format = format_of(kName, bits, mantissa);
  const std::int64_t groups = groups_of_rows(kName, rows, group_size, format);
  const std::int64_t pitch = fp_row_bytes(group_size, format);
  return rows.reshape({groups, pitch})
      .narrow(1, pitch - 4, 4)
      .clone(at::MemoryFormat::Contiguous)
      .view(at::kFloat);
}

void implement(torch::Library& m) {
  m.impl("fp_quantize", TORCH_FN(quantize_real));
  m.impl("fp_quantize_", TORCH_FN(quantize_into_real));
  m.impl("fp_dequantize_", TORCH_FN(dequantize_real));
  m.impl("fp_selective_dequantize_", TORCH_FN(select_real));
}

}  // namespace
}  // namespace ds

TORCH_LIBRARY_FRAGMENT(ds, m) {
  m.def(
      "fp_quantize(Tensor input, int group_size, int bits=8, int mantissa_bits=3, "
      "bool stochastic=False, int seed=0, int offset=0, Tensor? random_state=None) -> Tensor");
  m.def(
      "fp_quantize_(Tensor input, Tensor(a!) rows, int group_size, int bits=8, int "
      "mantissa_bits=3, "
      "bool stochastic=False, int seed=0, int offset=0, Tensor? random_state=None) -> ()");
  m.def(
      "fp_dequantize_(Tensor rows, Tensor(a!) output, int group_size, int bits=8, "
      "int mantissa_bits=3) -> ()");
  m.def(
      "fp_selective_dequantize_(Tensor rows, Tensor indexes, Tensor(a!) output, int group_size, "
      "int bits=8, int mantissa_bits=3) -> ()");
  m.def("fp_scales(Tensor rows, int group_size, int bits=8, int mantissa_bits=3) -> Tensor",
        TORCH_FN(ds::scales));
}

DS_LIBRARY_IMPL_FOR_DEVICES(ds::implement)

TORCH_LIBRARY_IMPL(ds, Meta, m) {
  m.impl("fp_quantize", TORCH_FN(ds::quantize_meta));
  m.impl("fp_quantize_", TORCH_FN(ds::quantize_into_meta));
  m.impl("fp_dequantize_", TORCH_FN(ds::dequantize_meta));
  m.impl("fp_selective_dequantize_", TORCH_FN(ds::select_meta));
}

// torch 1.13 knows no way from here to Meta.
TORCH_LIBRARY_IMPL(ds, AutogradMeta, m) {
  for (const char* name :
       {"fp_quantize", "fp_quantize_", "fp_dequantize_", "fp_selective_dequantize_"}) {
    m.impl(name, torch::CppFunction::makeFallthrough());
  }
}

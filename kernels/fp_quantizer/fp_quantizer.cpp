// The op on the CPU, and the self-test of both devices. Every number is read from memory once if
// its group stays in a core's cache between being measured and being rounded.

#include "fp_quantizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cpu_isa.h"
#include "cpu_kernels.h"
#include "plan.h"
#include "self_test_cases.h"
#ifdef DS_WITH_CUDA
#include "launch.h"
#endif

#define DS_KERNEL_FILE "kernel.h"
#include "for_each_isa.h"

namespace ds {
namespace {

using fp_quantizer::CpuKernels;

CpuKernels kernels_for(CpuIsa asked, const FloatFormat& format) {
  const CpuIsa isa = resolve_isa(asked);
  return DS_ON_PATH(isa, kernels(format));
}

std::int64_t bytes_of(DType dtype) {
  return static_cast<std::int64_t>(fp_quantizer::size_of(dtype));
}

void fill_nan(DType dtype, void* output, std::int64_t size) {
  if (dtype == DType::f32) std::fill_n(static_cast<float*>(output), size, NAN);
  // Quiet ones of either type.
  if (dtype == DType::f16) std::fill_n(static_cast<f16*>(output), size, f16{0x7e00});
  if (dtype == DType::bf16) std::fill_n(static_cast<bf16*>(output), size, bf16{0x7fc0});
}

void self_test(CpuIsa isa, Comparison& comparison) {
  fp_quantizer::test_all_types<OnHost>(CpuOptions{1, isa}, comparison);
}

}  // namespace

void fp_quantize(const FpQuantizeCall& call, const CpuOptions& cpu) {
  if (!fp_quantizer::check(call)) return;
  const CpuKernels kernels = kernels_for(cpu.isa, call.format);
  const auto type = static_cast<std::size_t>(call.dtype);
  const RandomSource random = resolved(call.random);
  const std::int64_t width = bytes_of(call.dtype), size = call.group_size;
  const std::int64_t pitch = fp_row_bytes(size, call.format);
  const float largest = reference::largest(call.format);
  const auto at = [&](std::int64_t i) { return static_cast<const char*>(call.input) + i * width; };
  for_each_group(
      call.groups, size, width + 1, false, cpu,
      [&](std::int64_t g, std::int64_t first, std::int64_t n, float*) {
        Seen seen;
        kernels.see[type](at(g * size + first), n, seen);
        return seen;
      },
      [&](std::int64_t g, const Seen& seen) {
        const float most = seen.largest_magnitude();
        const std::uint32_t scale = std::isnan(most) ? 0x7fffffffu : float_bits(most / largest);
        std::memcpy(call.rows + (g + 1) * pitch - 4, &scale, sizeof scale);
        return most;
      },
      [&](std::int64_t g, std::int64_t first, std::int64_t n, float most, float*) {
        std::uint8_t* codes = call.rows + g * pitch + first * call.format.bits / 8;
        if (!std::isfinite(most)) {
          std::memset(codes, 0, static_cast<std::size_t>(n * call.format.bits / 8));
          return;
        }
        const float factor = largest / most;
        kernels.encode[type]({at(g * size + first), n, static_cast<std::uint64_t>(g * size + first),
                              std::isinf(factor) ? 1.0f : factor, call.stochastic, random.seed,
                              random.offset, codes});
      });
}

void fp_dequantize(const FpDequantizeCall& call, const CpuOptions& cpu) {
  if (!fp_quantizer::check(call)) return;
  const CpuKernels kernels = kernels_for(cpu.isa, call.format);
  const std::int64_t size = call.group_size, slab = call.groups_an_index;
  const std::int64_t pitch = fp_row_bytes(size, call.format), width = bytes_of(call.dtype);
  const auto row_of = [&](std::int64_t g) -> const std::uint8_t* {
    if (call.indexes == nullptr) return call.rows + g * pitch;
    const std::int64_t index = call.indexes[g / slab];
    const bool exists = index >= 0 && index < call.groups / slab;
    return exists ? call.rows + (index * slab + g % slab) * pitch : nullptr;
  };
  const auto some = [&](std::int64_t g, std::int64_t first, std::int64_t n) {
    void* output = static_cast<char*>(call.output) + (g * size + first) * width;
    const std::uint8_t* row = row_of(g);
    if (row == nullptr) return fill_nan(call.dtype, output, n);
    float scale;
    std::memcpy(&scale, row + pitch - 4, sizeof scale);
    kernels.decode[static_cast<std::size_t>(call.dtype)](row + first * call.format.bits / 8, scale,
                                                         n, output);
  };
  // Elements of one group that begin on a byte in every format, and in cache lines of their own.
  constexpr std::int64_t kUnit = 4096;
  const std::int64_t pieces = (size + kUnit - 1) / kUnit;
  const std::int64_t groups =
      call.indexes == nullptr ? call.groups : call.index_count * call.groups_an_index;
  for_each_share(groups * pieces, 1, std::min(size, kUnit) * (width + 1), cpu,
                 [&](std::int64_t piece, std::int64_t end) {
                   for (; piece < end; ++piece) {
                     const std::int64_t first = piece % pieces * kUnit;
                     some(piece / pieces, first, std::min(kUnit, size - first));
                   }
                 });
}

}  // namespace ds

int ds_self_test_fp_quantizer(const char* device, char* detail, unsigned long detail_size) {
#ifdef DS_WITH_CUDA
  if (ds::names_cuda(device)) {
    return ds::fp_quantizer::self_test_on_cuda(device, detail, detail_size);
  }
#endif
  return ds::cpu_self_test(device, detail, detail_size, "f32, f16, bf16 to fp12, fp8, fp6, fp4",
                           ds::self_test);
}

// The op on the CPU, and the self-test of both devices. Every number is read from memory once if
// its group stays in a core's cache between being measured and being rounded.

#include "quantizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

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

using quantizer::CpuKernels;
using quantizer::Rounding;

const CpuKernels& kernels_for(CpuIsa asked) {
  const CpuIsa isa = resolve_isa(asked);
  return DS_ON_PATH(isa, kernels());
}

std::size_t index_of(DType dtype) {
  return static_cast<std::size_t>(dtype);
}

template <class Void>
Void* at(Void* data, DType dtype, std::int64_t i) {
  using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
  return data == nullptr ? nullptr : static_cast<Byte*>(data) + i * quantizer::size_of(dtype);
}

Rounding rounding_of(const Seen& seen, int bits, bool symmetric) {
  Rounding r{};
  r.params = reference::params_of(seen.lowest(), seen.highest(), seen.largest_magnitude(), bits,
                                  symmetric);
  r.lowest = -std::ldexp(1.0f, bits - 1);
  r.highest = -r.lowest - 1.0f;
  r.bits = bits;
  return r;
}

void self_test(CpuIsa isa, Comparison& comparison) {
  quantizer::test_all_types<OnHost>(CpuOptions{1, isa}, comparison);
}

}  // namespace

void quantize(const QuantizeCall& call, const CpuOptions& cpu) {
  if (!quantizer::check(call)) return;
  const CpuKernels& kernels = kernels_for(cpu.isa);
  const std::size_t type = index_of(call.dtype);
  const auto place = [&](std::int64_t g) {
    return reference::swizzled_group(g, call.groups, call.swizzle);
  };
  const auto error_at = [&](std::int64_t g, std::int64_t first) {
    return at(call.error, call.dtype, place(g) * call.group_size + first);
  };
  for_each_group(
      call.groups, call.group_size, quantizer::size_of(call.dtype) + 1, false, cpu,
      [&](std::int64_t g, std::int64_t first, std::int64_t size, float*) {
        Seen seen;
        kernels.see[type](at(call.input, call.dtype, g * call.group_size + first),
                          error_at(g, first), size, seen);
        return seen;
      },
      [&](std::int64_t g, const Seen& seen) {
        const Rounding r = rounding_of(seen, call.format.bits, call.format.symmetric);
        reference::put_params(call.params, place(g), r.params, call.format.symmetric);
        return r;
      },
      [&](std::int64_t g, std::int64_t first, std::int64_t size, const Rounding& r, float*) {
        kernels.encode[type](
            {at(call.input, call.dtype, g * call.group_size + first), error_at(g, first),
             call.error_beta, size,
             call.codes + (place(g) * call.group_size + first) * call.format.bits / 8},
            r);
      });
}

void dequantize(const DequantizeCall& call, const CpuOptions& cpu) {
  if (!quantizer::check(call)) return;
  const CpuKernels& kernels = kernels_for(cpu.isa);
  const bool symmetric = call.format.symmetric;
  const std::int64_t size = call.group_size;
  constexpr std::int64_t kUnit = 4096;  // Elements: even, and no two threads write one cache line.
  for_each_share(call.groups * size, kUnit, quantizer::size_of(call.dtype) + 1, cpu,
                 [&](std::int64_t i, std::int64_t end) {
                   while (i < end) {
                     const std::int64_t g = i / size, stop = std::min(end, (g + 1) * size);
                     kernels.decode[index_of(call.dtype)](
                         {call.codes + i * call.format.bits / 8, call.format.bits,
                          call.params[symmetric ? g : 2 * g],
                          symmetric ? 0.0f : call.params[2 * g + 1], stop - i},
                         at(call.output, call.dtype, i));
                     i = stop;
                   }
                 });
}

void fake_quantize(const FakeQuantizeCall& call, const CpuOptions& cpu) {
  if (!quantizer::check(call)) return;
  const CpuKernels& kernels = kernels_for(cpu.isa);
  const std::size_t type = index_of(call.dtype);
  const RandomSource random = resolved(call.random);
  for_each_group(
      call.groups, call.group_size, 2 * quantizer::size_of(call.dtype), false, cpu,
      [&](std::int64_t g, std::int64_t first, std::int64_t size, float*) {
        Seen seen;
        kernels.see[type](at(call.values, call.dtype, g * call.group_size + first), nullptr, size,
                          seen);
        return seen;
      },
      [&](std::int64_t, const Seen& seen) { return rounding_of(seen, call.bits, call.symmetric); },
      [&](std::int64_t g, std::int64_t first, std::int64_t size, const Rounding& r, float*) {
        const std::int64_t i = g * call.group_size + first;
        kernels.fake[type]({at(call.values, call.dtype, i), size, static_cast<std::uint64_t>(i),
                            call.stochastic, random.seed, random.offset},
                           r);
      });
}

void quantized_reduce(const ReduceCall& call, const CpuOptions& cpu) {
  if (!quantizer::check(call)) return;
  const CpuKernels& kernels = kernels_for(cpu.isa);
  const std::size_t type = index_of(call.error_dtype);
  const bool symmetric = call.format.symmetric;
  const std::int64_t in_size = call.size / call.in_groups, out_size = call.size / call.out_groups;
  for_each_group(
      call.out_groups, out_size, call.tensors + 1, true, cpu,
      [&](std::int64_t g, std::int64_t first, std::int64_t size, float* sums) {
        const std::int64_t begin = g * out_size + first, end = begin + size;
        std::fill(sums, sums + size, 0.0f);
        for (std::int64_t t = 0; t < call.tensors; ++t) {
          for (std::int64_t i = begin; i < end;) {
            const std::int64_t in_group = t * call.in_groups + i / in_size;
            const std::int64_t stop = std::min(end, (i / in_size + 1) * in_size);
            kernels.sum({call.codes + (t * call.size + i) * call.format.bits / 8, call.format.bits,
                         call.params[symmetric ? in_group : 2 * in_group],
                         symmetric ? 0.0f : call.params[2 * in_group + 1], stop - i},
                        symmetric, sums + (i - begin));
            i = stop;
          }
        }
        if (call.error != nullptr) {
          kernels.add[type](at(call.error, call.error_dtype, begin), size, sums);
        }
        Seen seen;
        kernels.see[index_of(DType::f32)](sums, nullptr, size, seen);
        return seen;
      },
      [&](std::int64_t g, const Seen& seen) {
        const Rounding r = rounding_of(seen, call.format.bits, symmetric);
        reference::put_params(call.out_params, g, r.params, symmetric);
        return r;
      },
      [&](std::int64_t g, std::int64_t first, std::int64_t size, const Rounding& r,
          const float* sums) {
        const std::int64_t i = g * out_size + first;
        kernels.encode_sums[type]({sums, at(call.error, call.error_dtype, i), call.error_beta, size,
                                   call.out_codes + i * call.format.bits / 8},
                                  r);
      });
}

void int_to_half(const IntToHalfCall& call, const CpuOptions& cpu) {
  if (!quantizer::check(call)) return;
  const CpuKernels& kernels = kernels_for(cpu.isa);
  constexpr std::int64_t kUnit = 4096;
  for_each_share(call.groups * call.group_size, kUnit, 3, cpu,
                 [&](std::int64_t i, std::int64_t end) {
                   while (i < end) {
                     const std::int64_t g = i / call.group_size;
                     const std::int64_t stop = std::min(end, (g + 1) * call.group_size);
                     kernels.to_half(call.codes + i * call.bits / 8, call.bits, f16{call.scales[g]},
                                     f16{call.minimums[g]}, stop - i, call.output + i);
                     i = stop;
                   }
                 });
}

}  // namespace ds

int ds_self_test_quantizer(const char* device, char* detail, unsigned long detail_size) {
#ifdef DS_WITH_CUDA
  if (ds::names_cuda(device)) {
    return ds::quantizer::self_test_on_cuda(device, detail, detail_size);
  }
#endif
  return ds::cpu_self_test(device, detail, detail_size, "f32, f16, bf16 to int8 and int4",
                           ds::self_test);
}

#pragma once

// What the self-test computes, on any device: every format and type, there and back, against
// reference.h, to the last bit.

#include <cstring>
#include <string>
#include <vector>

#include "fp_quantizer.h"
#include "reference.h"
#include "self_test.h"

namespace ds::fp_quantizer {

// `Copied<T>` is a vector's copy where the functions compute with `where`: data() is there, host()
// brings it back.
template <template <class> class Copied, class T, class Where>
void test_type(DType dtype, const char* name, const Where& where, Comparison& comparison) {
  constexpr std::int64_t kGroups = 5;
  // On a GPU 512 takes the way of teams, 332 the one for any size.
  for (const std::int64_t group_size : {512, 332}) {
    for (const FloatFormat format : {FloatFormat{12, 7}, FloatFormat{8, 3}, FloatFormat{8, 2},
                                     FloatFormat{6, 2}, FloatFormat{4, 1}}) {
      for (const bool stochastic : {false, true}) {
        std::vector<T> x(static_cast<std::size_t>(kGroups * group_size));
        Random random(static_cast<std::uint64_t>(group_size));
        for (T& value : x) from_float(static_cast<float>(random.next()), value);
        std::vector<std::uint8_t> rows(
            static_cast<std::size_t>(kGroups * fp_row_bytes(group_size, format)));
        const Copied<T> copied_x(x);
        const Copied<std::uint8_t> copied_rows(rows);
        FpQuantizeCall call;
        call.input = copied_x.data();
        call.dtype = dtype;
        call.groups = kGroups;
        call.group_size = group_size;
        call.format = format;
        call.stochastic = stochastic;
        call.rows = copied_rows.data();
        fp_quantize(call, where);
        FpDequantizeCall inverse;
        inverse.rows = call.rows;
        inverse.output = copied_x.data();
        inverse.dtype = dtype;
        inverse.groups = kGroups;
        inverse.group_size = group_size;
        inverse.format = format;
        fp_dequantize(inverse, where);
        call.input = x.data();
        call.rows = rows.data();
        reference::fp_quantize<T>(call);
        inverse.rows = rows.data();
        inverse.output = x.data();
        reference::fp_dequantize<T>(inverse);
        const std::vector<T> got = copied_x.host();
        const std::string what = std::string(name) + ", " + std::to_string(format.bits) +
                                 " bits, groups of " + std::to_string(group_size);
        if (copied_rows.host() != rows) comparison.fail("rows differ: " + what);
        if (std::memcmp(got.data(), x.data(), x.size() * sizeof(T)) != 0) {
          comparison.fail("what comes back differs: " + what);
        }
      }
    }
  }
}

template <template <class> class Copied, class Where>
void test_all_types(const Where& where, Comparison& comparison) {
  test_type<Copied, float>(DType::f32, "f32", where, comparison);
  test_type<Copied, f16>(DType::f16, "f16", where, comparison);
  test_type<Copied, bf16>(DType::bf16, "bf16", where, comparison);
}

}  // namespace ds::fp_quantizer

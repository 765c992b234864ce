#pragma once

// What the self-test computes, on any device: a small case of everything, against reference.h, to
// the last bit.

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "quantizer.h"
#include "reference.h"
#include "self_test.h"

namespace ds::quantizer {

template <class T>
bool same(const std::vector<T>& got, const std::vector<T>& want) {
  return std::memcmp(got.data(), want.data(), want.size() * sizeof(T)) == 0;
}

// `Copied<T>` is a vector's copy where the functions compute with `where`: data() is there, host()
// brings it back.
template <template <class> class Copied, class T, class Where>
void test_type(DType dtype, const char* name, const Where& where, Comparison& comparison) {
  constexpr std::int64_t kGroups = 5;
  // On a GPU 512 takes the way of teams, 330 the one for any size.
  for (const std::int64_t group_size : {512, 330}) {
    for (const int bits : {8, 4}) {
      for (const bool symmetric : {true, false}) {
        std::vector<T> x(static_cast<std::size_t>(kGroups * group_size));
        Random random(static_cast<std::uint64_t>(group_size));
        for (T& value : x) from_float(static_cast<float>(random.next()), value);
        std::vector<std::uint8_t> codes(x.size() * static_cast<std::size_t>(bits) / 8, 0xA5);
        std::vector<float> params(kGroups * (symmetric ? 1 : 2), NAN);
        const Copied<T> copied_x(x);
        const Copied<std::uint8_t> copied_codes(codes);
        const Copied<float> copied_params(params);
        QuantizeCall call;
        call.dtype = dtype;
        call.groups = kGroups;
        call.group_size = group_size;
        call.format = {bits, symmetric};
        call.input = copied_x.data();
        call.codes = copied_codes.data();
        call.params = copied_params.data();
        quantize(call, where);
        FakeQuantizeCall fake;
        fake.dtype = dtype;
        fake.groups = kGroups;
        fake.group_size = group_size;
        fake.bits = bits;
        fake.symmetric = symmetric;
        fake.stochastic = true;
        fake.random.seed = 5;
        fake.values = copied_x.data();
        fake_quantize(fake, where);
        call.input = x.data();
        call.codes = codes.data();
        call.params = params.data();
        reference::quantize<T>(call);
        fake.values = x.data();
        reference::fake_quantize<T>(fake);
        const std::string what = std::string(name) + ", " + std::to_string(bits) + " bits, " +
                                 (symmetric ? "symmetric" : "asymmetric") + ", groups of " +
                                 std::to_string(group_size);
        if (!same(copied_codes.host(), codes)) comparison.fail("codes differ: " + what);
        if (!same(copied_params.host(), params)) comparison.fail("parameters differ: " + what);
        if (!same(copied_x.host(), x)) comparison.fail("fake quantization differs: " + what);
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

}  // namespace ds::quantizer

#pragma once

// What the self-test computes, on any device.

#include "reference.h"
#include "self_test.h"
#include "spatial_inference.h"

namespace ds::spatial_inference {

struct Case {
  Case(DType dtype, std::int64_t of_channels, int of_terms)
      : channels(of_channels),
        terms(of_terms),
        x(dtype, kPixels * channels),
        other(dtype, kPixels * channels),
        bias(dtype, channels),
        other_bias(dtype, channels),
        out(dtype, kPixels * channels) {
    Random random(3);
    for (Buffer* image : {&x, &other}) {
      for (std::int64_t i = 0; i < kPixels * channels; ++i) image->set(i, random.next());
    }
    for (Buffer* b : {&bias, &other_bias}) {
      for (std::int64_t i = 0; i < channels; ++i) b->set(i, random.next());
    }
  }

  // For these buffers wherever they were copied to.
  SpatialInferenceSum sum(const void* x_at, const void* bias_at, const void* other_at,
                          const void* other_bias_at, void* out_at) const {
    return {x_at,
            bias_at,
            terms > 1 ? other_at : nullptr,
            terms > 2 ? other_bias_at : nullptr,
            out_at,
            kPixels,
            channels,
            x.dtype()};
  }

  static constexpr std::int64_t kPixels = 301;
  std::int64_t channels;
  int terms;
  Buffer x, other, bias, other_bias, out;
};

// All three sums, with channels that fill whole accesses and that do not. `compute(case)` leaves
// the result in case.out.
template <class Compute>
void test_all_sums(Comparison& comparison, const Compute& compute) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const std::int64_t channels : {32, 5}) {
      for (int terms = 1; terms <= 3; ++terms) {
        Case c(dtype, channels, terms);
        compute(c);
        for (std::int64_t i = 0; i < Case::kPixels * channels; ++i) {
          comparison.check(
              "out", i, c.out,
              spatial_inference_reference(c.x.get(i), c.bias.get(i % channels),
                                          terms > 1 ? c.other.get(i) : 0.0,
                                          terms > 2 ? c.other_bias.get(i % channels) : 0.0));
        }
        if (!c.out.guard_is_intact()) comparison.fail("wrote behind the last element");
      }
    }
  }
}

}  // namespace ds::spatial_inference

#pragma once

// A tensor with random numbers and what belongs to it, for the self-tests of the optimizers on any
// device and for the tests that do not travel with the libraries.

#include <cmath>
#include <cstdint>

#include "self_test.h"

namespace ds {

// And f32 parameters with states of 16 bits.
inline std::vector<OptimizerTypes> all_fused_optimizer_types() {
  std::vector<OptimizerTypes> all = all_optimizer_types();
  for (const DType state : {DType::f16, DType::bf16}) {
    for (const DType grad : {DType::f32, state}) all.push_back({DType::f32, grad, state});
  }
  return all;
}

// Gradients times `scale`, some of them 0, and some of those with no momentum either.
struct OptimizerCase {
  OptimizerCase(OptimizerTypes t, std::int64_t n, double scale = 1.0, std::uint64_t seed = 7,
                DType copy_type = DType::bf16)
      : types(t),
        size(n),
        p(t.param, n),
        g(t.grad, n),
        m(t.state, n),
        v(t.state, n),
        copy(copy_type, n),
        ratio(DType::f32, 1) {
    Random random(seed);
    for (std::int64_t i = 0; i < n; ++i) {
      p.set(i, random.next());
      g.set(i, i % 11 == 0 ? 0.0 : scale * random.next());
      m.set(i, i % 22 == 0 ? 0.0 : 0.1 * random.next());
      v.set(i, std::fabs(0.01 * random.next()));
    }
    ratio.set(0, 0.0);
  }

  // Says so in `comparison` if something was written behind the last element.
  void check_guards(Comparison& comparison) const {
    for (const Buffer* buffer : {&p, &g, &m, &v, &copy, &ratio}) {
      if (!buffer->guard_is_intact()) comparison.fail("wrote behind the last element");
    }
  }

  OptimizerTypes types;
  std::int64_t size;
  Buffer p, g, m, v, copy, ratio;
};

}  // namespace ds

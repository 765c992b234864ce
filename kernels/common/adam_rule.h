// Adam's arithmetic for the code path DS_ISA; see for_each_isa.h. About 14 float operations, one
// square root and one division an element, against 28 bytes of traffic in f32: bound by memory as
// soon as the tensors leave the caches. No #pragma once: a kernel file includes it once a path.

#include "optimizer_loop.h"

namespace ds::DS_ISA {
namespace {

// rest·average + weight·value, with rest + weight = 1. Not computed that way: beta rounded to
// float would decay the average at a slightly wrong rate for ever. The form below has the exact
// fixed point, and starts from the term with the larger weight so that nothing cancels.
DS_TARGET DS_INLINE Vec blend(Vec average, Vec value, Vec weight, Vec rest, bool mostly_average) {
  return mostly_average ? average + weight * (value - average) : value + rest * (average - value);
}

// F has the floats named below, computed in double and rounded once.
template <class F>
struct AdamStep {
  using Factors = F;
  static constexpr int kStates = 2;
  Vec weight1, rest1, weight2, rest2, step_size, inv_correction2, eps, l2, decay;
  bool has_l2, has_decay, mostly_average1, mostly_average2;

  DS_TARGET DS_INLINE explicit AdamStep(const F& f)
      : weight1(set1(f.weight1)),
        rest1(set1(f.rest1)),
        weight2(set1(f.weight2)),
        rest2(set1(f.rest2)),
        step_size(set1(f.step_size)),
        inv_correction2(set1(f.inv_correction2)),
        eps(set1(f.eps)),
        l2(set1(f.l2)),
        decay(set1(f.decay)),
        has_l2(settled(f.l2 != 0.0f)),
        has_decay(settled(f.decay != 0.0f)),
        mostly_average1(settled(f.weight1 <= 0.5f)),
        mostly_average2(settled(f.weight2 <= 0.5f)) {}

  DS_TARGET DS_INLINE Vec change(Vec m, Vec v) const {
    return step_size * (m / (sqrt(v) * inv_correction2 + eps));
  }

  DS_TARGET DS_INLINE void update(Vec& p, Vec g, Vec& m, Vec& v) const {
    if (has_l2) g = g + l2 * p;
    m = blend(m, g, weight1, rest1, mostly_average1);
    v = blend(v, g * g, weight2, rest2, mostly_average2);
    Vec step = change(m, v);
    // Not p·(1 - decay): 1 - 1e-5 in float is off by a part in 300 of what it should take away.
    if (has_decay) step = step + decay * p;
    p = p - step;
  }
};

}  // namespace
}  // namespace ds::DS_ISA

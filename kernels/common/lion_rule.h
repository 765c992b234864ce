// Lion's arithmetic for the code path DS_ISA; see for_each_isa.h. 20 bytes of traffic an element in
// f32 and nothing slower than a multiplication: bound by memory outside the first caches. No
// #pragma once: a kernel file includes it once a path.

#include "optimizer_loop.h"

namespace ds::DS_ISA {
namespace {

// F has the floats named below, computed in double and rounded once.
template <class F>
struct LionStep {
  using Factors = F;
  static constexpr int kStates = 1;
  Vec beta1, weight1, weight2, rest2, lr, decay;
  bool has_decay, mostly_average2;

  DS_TARGET DS_INLINE explicit LionStep(const F& f)
      : beta1(set1(f.beta1)),
        weight1(set1(f.weight1)),
        weight2(set1(f.weight2)),
        rest2(set1(f.rest2)),
        lr(set1(f.lr)),
        decay(set1(f.decay)),
        has_decay(settled(f.decay != 0.0f)),
        mostly_average2(settled(f.weight2 <= 0.5f)) {}

  DS_TARGET DS_INLINE void update(Vec& p, Vec g, Vec& m, Vec&) const {
    Vec change = signed_step(beta1 * m + weight1 * g, lr);
    if (has_decay) change = change + decay * p;
    p = p - change;
    m = mostly_average2 ? m + weight2 * (g - m) : g + rest2 * (m - g);
  }
};

}  // namespace
}  // namespace ds::DS_ISA

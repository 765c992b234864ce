// Adam and its undoing for the code path DS_ISA; see for_each_isa.h.

#include "adam_rule.h"

namespace ds::DS_ISA {
namespace {

struct AdamRollback {
  using Factors = AdamFactors;
  static constexpr int kStates = 2;
  AdamStep<AdamFactors> step;
  Vec undecay, inv1, inv2;
  DS_TARGET DS_INLINE explicit AdamRollback(const AdamFactors& f)
      : step(f), undecay(set1(f.undecay)), inv1(set1(f.inv1)), inv2(set1(f.inv2)) {}

  DS_TARGET DS_INLINE void update(Vec& p, Vec g, Vec& m, Vec& v) const {
    p = p + step.change(m, v);
    if (step.has_decay) p = p + undecay * p;
    if (step.has_l2) g = g + step.l2 * p;
    m = (m - step.weight1 * g) * inv1;
    // Rounding can leave the old v a little below zero, and the next step takes its square root.
    v = max0((v - step.weight2 * (g * g)) * inv2);
  }
};

inline Kernel step_kernel(const OptimizerTensor& tensor) {
  return kernel_for<AdamStep<AdamFactors>>(tensor);
}
inline Kernel rollback_kernel(const OptimizerTensor& tensor) {
  return kernel_for<AdamRollback>(tensor);
}

}  // namespace
}  // namespace ds::DS_ISA

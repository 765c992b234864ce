// Adagrad's arithmetic for the code path DS_ISA; see for_each_isa.h. 20 bytes of traffic an element
// in f32, one square root and one division: bound by memory outside the caches.

#include "optimizer_loop.h"

namespace ds::DS_ISA {
namespace {

struct AdagradStep {
  using Factors = AdagradFactors;
  static constexpr int kStates = 1;
  Vec lr, eps, weight_decay;
  bool has_decay;

  DS_TARGET DS_INLINE explicit AdagradStep(const AdagradFactors& f)
      : lr(set1(f.lr)),
        eps(set1(f.eps)),
        weight_decay(set1(f.weight_decay)),
        has_decay(settled(f.weight_decay != 0.0f)) {}

  DS_TARGET DS_INLINE void update(Vec& p, Vec g, Vec& v, Vec&) const {
    if (has_decay) g = g + weight_decay * p;
    v = v + g * g;
    // The quotient first: it is at most 1, lr·g could underflow.
    p = p - lr * (g / (sqrt(v) + eps));
  }
};

inline Kernel step_kernel(const OptimizerTensor& tensor) {
  return kernel_for<AdagradStep>(tensor);
}

}  // namespace
}  // namespace ds::DS_ISA

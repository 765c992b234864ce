// Lion for the code path DS_ISA; see for_each_isa.h.

#include "lion_rule.h"

namespace ds::DS_ISA {
namespace {

inline Kernel step_kernel(const OptimizerTensor& tensor) {
  return kernel_for<LionStep<LionFactors>>(tensor);
}

}  // namespace
}  // namespace ds::DS_ISA

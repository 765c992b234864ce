// A small problem of each kind.

#include "self_test.h"

#include "cases.h"
#include "transformer_inference.h"

namespace ds {
namespace {

void self_test(CpuIsa isa, Comparison& comparison) {
  using namespace transformer_inference;
  const CpuOptions cpu{1, isa};
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    test_norm(dtype, 2, 100, NormKind::layer, true, cpu, comparison);
    test_norm(dtype, 2, 100, NormKind::rms, false, cpu, comparison);
    for (const Activation activation :
         {Activation::identity, Activation::relu, Activation::gelu_tanh, Activation::gelu,
          Activation::silu}) {
      test_activation(dtype, 2, 41, activation, activation >= Activation::gelu, cpu, comparison);
    }
    test_sums(dtype, 2, 41, cpu, comparison);
    test_softmax(dtype, 2, 3, 50, true, 0, cpu, comparison);
    test_rotary(dtype, 2, 3, 40, 24, dtype == DType::f32, cpu, comparison);
    test_attention(dtype, {1, 4, 2, 5, 70, 24}, true, 66, cpu, comparison);
  }
}

}  // namespace
}  // namespace ds

int ds_self_test_transformer_inference(const char* device, char* detail,
                                       unsigned long detail_size) {
  return ds::cpu_self_test(device, detail, detail_size, "36 cases", ds::self_test);
}

// A small problem of each kind.

#include "self_test.h"

#include "cases.h"
#include "transformer.h"

namespace ds {
namespace {

void self_test(CpuIsa isa, Comparison& comparison) {
  const CpuOptions cpu{1, isa};
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const double dropout : {0.0, 0.25}) {
      transformer::test_attention(dtype, {1, 2, 20, 24}, dropout, false, cpu, comparison);
      transformer::test_rows(dtype, 3, 41, dropout, cpu, comparison);
    }
    for (const bool from_out : {false, true}) {
      transformer::test_norm(dtype, 3, 41, from_out, cpu, comparison);
    }
  }
}

}  // namespace
}  // namespace ds

int ds_self_test_transformer(const char* device, char* detail, unsigned long detail_size) {
  return ds::cpu_self_test(device, detail, detail_size, "18 cases", ds::self_test);
}

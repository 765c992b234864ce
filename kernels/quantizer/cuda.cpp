// What the host does for the op on a GPU beside the launches: the self-test.

#include "cuda_host.cuh"
#include "launch.h"
#include "self_test_cases.h"

namespace ds {
namespace {

void self_test(int, Comparison& comparison) {
  quantizer::test_all_types<OnDeviceFor>(static_cast<void*>(nullptr), comparison);
}

}  // namespace

int quantizer::self_test_on_cuda(const char* device, char* detail, unsigned long detail_size) {
  return cuda_self_test(device, detail, detail_size, "f32, f16, bf16 to int8 and int4", self_test);
}

}  // namespace ds

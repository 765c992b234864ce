// The self-test: every format and type, there and back, against reference.h, to the last bit.

#include "fp_quantizer.h"

#include <cstring>
#include <string>
#include <vector>

#include "cuda_host.cuh"
#include "reference.h"

namespace ds {
namespace {

constexpr std::int64_t kGroups = 5;

template <class T>
void test_type(DType dtype, const char* name, Comparison& comparison) {
  // 512 takes the way of teams, 332 the one for any size.
  for (const std::int64_t group_size : {512, 332}) {
    for (const FloatFormat format : {FloatFormat{12, 7}, FloatFormat{8, 3}, FloatFormat{8, 2},
                                     FloatFormat{6, 2}, FloatFormat{4, 1}}) {
      for (const bool stochastic : {false, true}) {
        std::vector<T> x(static_cast<std::size_t>(kGroups * group_size));
        Random random(static_cast<std::uint64_t>(group_size));
        for (T& value : x) from_float(static_cast<float>(random.next()), value);
        std::vector<std::uint8_t> rows(
            static_cast<std::size_t>(kGroups * fp_row_bytes(group_size, format)));
        const DeviceMemory device_x(x.size() * sizeof(T)), device_rows(rows.size());
        check_cuda(cudaMemcpy(device_x.data(), x.data(), device_x.size(), cudaMemcpyHostToDevice),
                   "while copying to the device");
        FpQuantizeCall call;
        call.input = device_x.data();
        call.dtype = dtype;
        call.groups = kGroups;
        call.group_size = group_size;
        call.format = format;
        call.stochastic = stochastic;
        call.rows = static_cast<std::uint8_t*>(device_rows.data());
        fp_quantize(call, nullptr);
        FpDequantizeCall inverse;
        inverse.rows = call.rows;
        inverse.output = device_x.data();
        inverse.dtype = dtype;
        inverse.groups = kGroups;
        inverse.group_size = group_size;
        inverse.format = format;
        fp_dequantize(inverse, nullptr);
        call.input = x.data();
        call.rows = rows.data();
        reference::fp_quantize<T>(call);
        inverse.rows = rows.data();
        inverse.output = x.data();
        reference::fp_dequantize<T>(inverse);
        std::vector<T> got(x.size());
        std::vector<std::uint8_t> got_rows(rows.size());
        check_cuda(
            cudaMemcpy(got_rows.data(), device_rows.data(), rows.size(), cudaMemcpyDeviceToHost),
            "while copying from the device");
        check_cuda(cudaMemcpy(got.data(), device_x.data(), device_x.size(), cudaMemcpyDeviceToHost),
                   "while copying from the device");
        const std::string what = std::string(name) + ", " + std::to_string(format.bits) +
                                 " bits, groups of " + std::to_string(group_size);
        if (got_rows != rows) comparison.fail("rows differ: " + what);
        if (std::memcmp(got.data(), x.data(), device_x.size()) != 0) {
          comparison.fail("what comes back differs: " + what);
        }
      }
    }
  }
}

}  // namespace
}  // namespace ds

extern "C" int ds_self_test_fp_quantizer(const char* device, char* detail,
                                         unsigned long detail_size) {
  return ds::cuda_self_test(device, detail, detail_size, "f32, f16, bf16 to fp12, fp8, fp6, fp4",
                            [](int, ds::Comparison& comparison) {
                              ds::test_type<float>(ds::DType::f32, "f32", comparison);
                              ds::test_type<ds::f16>(ds::DType::f16, "f16", comparison);
                              ds::test_type<ds::bf16>(ds::DType::bf16, "bf16", comparison);
                            });
}

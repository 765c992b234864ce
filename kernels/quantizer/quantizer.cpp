// The self-test: a small case of everything, against reference.h, to the last bit.

#include "quantizer.h"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "cuda_host.cuh"
#include "reference.h"

namespace ds {
namespace {

constexpr std::int64_t kGroups = 5;

template <class T>
DeviceMemory uploaded(const std::vector<T>& from) {
  DeviceMemory memory(from.size() * sizeof(T));
  check_cuda(cudaMemcpy(memory.data(), from.data(), memory.size(), cudaMemcpyHostToDevice),
             "while copying to the device");
  return memory;
}

template <class T>
bool holds(const DeviceMemory& memory, const std::vector<T>& want) {
  std::vector<T> got(want.size());
  check_cuda(cudaMemcpy(got.data(), memory.data(), memory.size(), cudaMemcpyDeviceToHost),
             "while copying from the device");
  return std::memcmp(got.data(), want.data(), memory.size()) == 0;
}

template <class T>
void test_type(DType dtype, const char* name, Comparison& comparison) {
  // 512 takes the way of teams, 331 the one for any size (with 4 bits: 330).
  for (const std::int64_t group_size : {512, 330}) {
    for (const int bits : {8, 4}) {
      for (const bool symmetric : {true, false}) {
        std::vector<T> x(static_cast<std::size_t>(kGroups * group_size));
        Random random(static_cast<std::uint64_t>(group_size));
        for (T& value : x) from_float(static_cast<float>(random.next()), value);
        std::vector<std::uint8_t> codes(x.size() * static_cast<std::size_t>(bits) / 8, 0xA5);
        std::vector<float> params(kGroups * (symmetric ? 1 : 2), NAN);
        const DeviceMemory device_x = uploaded(x), device_codes = uploaded(codes),
                           device_params = uploaded(params);
        QuantizeCall call;
        call.dtype = dtype;
        call.groups = kGroups;
        call.group_size = group_size;
        call.format = {bits, symmetric};
        call.input = device_x.data();
        call.codes = static_cast<std::uint8_t*>(device_codes.data());
        call.params = static_cast<float*>(device_params.data());
        quantize(call, nullptr);
        FakeQuantizeCall fake;
        fake.dtype = dtype;
        fake.groups = kGroups;
        fake.group_size = group_size;
        fake.bits = bits;
        fake.symmetric = symmetric;
        fake.stochastic = true;
        fake.random.seed = 5;
        fake.values = device_x.data();
        fake_quantize(fake, nullptr);
        call.input = x.data();
        call.codes = codes.data();
        call.params = params.data();
        reference::quantize<T>(call);
        fake.values = x.data();
        reference::fake_quantize<T>(fake);
        const std::string what = std::string(name) + ", " + std::to_string(bits) + " bits, " +
                                 (symmetric ? "symmetric" : "asymmetric") + ", groups of " +
                                 std::to_string(group_size);
        if (!holds(device_codes, codes)) comparison.fail("codes differ: " + what);
        if (!holds(device_params, params)) comparison.fail("parameters differ: " + what);
        if (!holds(device_x, x)) comparison.fail("fake quantization differs: " + what);
      }
    }
  }
}

}  // namespace
}  // namespace ds

extern "C" int ds_self_test_quantizer(const char* device, char* detail, unsigned long detail_size) {
  return ds::cuda_self_test(device, detail, detail_size, "f32, f16, bf16 to int8 and int4",
                            [](int, ds::Comparison& comparison) {
                              ds::test_type<float>(ds::DType::f32, "f32", comparison);
                              ds::test_type<ds::f16>(ds::DType::f16, "f16", comparison);
                              ds::test_type<ds::bf16>(ds::DType::bf16, "bf16", comparison);
                            });
}

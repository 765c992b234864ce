// The CPU optimizers and attention as 64-bit Arm runs them, without torch: neon_test.py compiles
// this file for that processor. Every conversion of simd.h against the scalar code, and the
// self-tests of the ops.

#include <cstdio>
#include <cstring>
#include <vector>

#include "cpu_adagrad.h"
#include "cpu_adam.h"
#include "cpu_lion.h"
#include "evoformer_attn.h"
#include "fused_lamb.h"
#include "half.h"
#include "simd.h"

namespace {

// Bits of the upper half with lower halves around every rounding decision.
template <class T>
bool narrows_alike() {
  for (std::uint32_t top = 0; top < 0x10000u; ++top) {
    for (std::uint32_t low :
         {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u}) {
      float in[4];
      T got[4], want;
      for (float& x : in) x = ds::float_from_bits(top << 16 | low);
      ds::neon::store(static_cast<T*>(got), ds::neon::load(static_cast<const float*>(in)));
      ds::from_float(in[0], want);
      if (got[0].bits != want.bits || got[3].bits != want.bits) {
        std::printf("%08x narrows to %04x, should be %04x\n", top << 16 | low, got[0].bits,
                    want.bits);
        return false;
      }
    }
  }
  return true;
}

template <class T>
bool widens_alike() {
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    T in[4];
    float got[4];
    for (T& x : in) x.bits = static_cast<std::uint16_t>(bits);
    ds::neon::store(static_cast<float*>(got), ds::neon::load(static_cast<const T*>(in)));
    if (ds::float_bits(got[2]) != ds::float_bits(ds::to_float(in[2]))) {
      std::printf("%04x widens to %08x\n", bits, ds::float_bits(got[2]));
      return false;
    }
  }
  return true;
}

bool steps_and_roots_alike() {
  for (const float x : {0.0f, -0.0f, 1.0f, -1.0f, 1e-45f, -1e-45f, __builtin_inff(),
                        -__builtin_inff(), __builtin_nanf(""), 0.3f, -0.3f}) {
    float got[4];
    const auto is = [&](float want) { return std::memcmp(&got[1], &want, sizeof want) == 0; };
    for (const float step : {0.25f, -0.25f}) {
      ds::neon::store(got, ds::neon::signed_step(ds::neon::set1(x), ds::neon::set1(step)));
      if (!is(ds::scalar::signed_step(x, step))) return false;
    }
    ds::neon::store(got, ds::neon::sqrt(ds::neon::max0(ds::neon::set1(x))));
    if (!is(ds::scalar::sqrt(ds::scalar::max0(x)))) return false;
  }
  return true;
}

bool report(const char* name, bool ok, const char* detail = "") {
  std::printf("%s: %s %s\n", name, ok ? "ok" : "WRONG", detail);
  return ok;
}

}  // namespace

int main() {
  bool ok = report("narrow f16", narrows_alike<ds::f16>());
  ok &= report("narrow bf16", narrows_alike<ds::bf16>());
  ok &= report("widen f16", widens_alike<ds::f16>());
  ok &= report("widen bf16", widens_alike<ds::bf16>());
  ok &= report("steps and roots", steps_and_roots_alike());
  const struct {
    const char* name;
    DsSelfTestFunction self_test;
  } ops[] = {{"cpu_adagrad", ds_self_test_cpu_adagrad},
             {"cpu_adam", ds_self_test_cpu_adam},
             {"cpu_lion", ds_self_test_cpu_lion},
             {"evoformer_attn", ds_self_test_evoformer_attn},
             {"fused_lamb", ds_self_test_fused_lamb}};
  for (const auto& op : ops) {
    char detail[200] = "";
    const int result = op.self_test("cpu", detail, sizeof detail);
    ok &= report(op.name, result == DS_SELF_TEST_OK && std::strstr(detail, "neon") != nullptr,
                 detail);
  }
  return ok ? 0 : 1;
}

#pragma once

#include <cstdint>

namespace ds {

// How a tensor's elements are stored. Arithmetic is always in float.
enum class DType : std::uint8_t { f32, f16, bf16 };

// Code paths of the CPU ops, each a superset of the one before. All give the same bits: no path
// uses fused multiply-add, and rounding to 16 bits is to nearest even everywhere. So a job may
// mix machines, and a wrong number is a bug, never "the other vector width".
enum class CpuIsa : std::uint8_t {
  automatic,    // The best of this machine; the environment variable DS_CPU_ISA can cap it.
  scalar,       // Any machine.
  avx2,         // AVX2 and F16C.
  avx512,       // AVX-512 F, BW, DQ, VL.
  avx512_bf16,  // And AVX512_BF16.
};

// How to run, as opposed to what to compute: the result does not depend on it.
struct CpuOptions {
  int threads = 0;                 // 0: as many as OpenMP would use; 1: starts no thread.
  CpuIsa isa = CpuIsa::automatic;  // A path that this machine lacks is refused.
};

}  // namespace ds

#pragma once

#include <cstdint>

namespace ds {

// How a tensor's elements are stored. Arithmetic is always in float.
enum class DType : std::uint8_t { f32, f16, bf16 };

// What ranks exchange, and what becomes of it. Of f16 and bf16 the arithmetic is in float.
enum class CommType : std::uint8_t { f32, f16, bf16, f64, i8, u8, i32, i64 };
enum class CommReduction : std::uint8_t { sum, product, min, max };

// Code paths of the CPU ops, each a superset of the one before. All give the same bits: multiply
// and add are fused only where the definition says so, and rounding to 16 bits is to nearest even.
// So a job may mix machines, and a wrong number is a bug, never "the other vector width".
enum class CpuIsa : std::uint8_t {
  automatic,    // The best of this machine; the environment variable DS_CPU_ISA can cap it.
  scalar,       // Any machine.
  avx2,         // AVX2, FMA and F16C.
  avx512,       // AVX-512 F, BW, DQ, VL.
  avx512_bf16,  // And AVX512_BF16.
};

// How to run, as opposed to what to compute: the result does not depend on it.
struct CpuOptions {
  int threads = 0;                 // 0: as many as OpenMP would use; 1: starts no thread.
  CpuIsa isa = CpuIsa::automatic;  // A path that this machine lacks is refused.
};

// Where a CUDA op runs. It launches and returns; whoever owns the memory keeps it until the stream
// has passed.
struct CudaOptions {
  int device = -1;         // -1: the current one.
  void* stream = nullptr;  // A cudaStream_t of that device; null is its default stream.
};

// What an optimizer on a GPU does to the gradients before it uses them.
struct GradientOptions {
  double scale = 1.0;     // They are divided by it: the loss was multiplied.
  double max_norm = 0.0;  // > 0: scaled down if their norm (OptimizerScalars) is larger.
};

// Numbers that lie on the device, so that a CUDA graph captures a step that depends on them. Each
// may be null; one that is not replaces what the options say.
struct OptimizerScalars {
  std::int64_t* step = nullptr;  // Steps done so far; a step that is not skipped adds one.
  const float* lr = nullptr;
  const float* grad_scale = nullptr;  // Instead of GradientOptions::scale.
  const float* grad_norm = nullptr;   // Of the gradients as they are, before they are divided.
  const float* found_inf = nullptr;   // Not 0: nothing is written, the step does not count.
};

}  // namespace ds

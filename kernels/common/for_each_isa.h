// Compiles the file DS_KERNEL_FILE once for every code path, with DS_ISA the path's namespace
// (ds::DS_ISA has the vocabulary of simd.h) and DS_TARGET the attribute that each of its functions
// must carry. No #pragma once: that is the point.

#include "simd.h"

// `call` of the namespace of the path `isa`: DS_ON_PATH(isa, kernel_for(tensor)). A path that the
// build does not have is the scalar one.
#ifndef DS_ON_PATH
#if defined(__x86_64__)
#define DS_ON_PATH(isa, ...)                                           \
  ((isa) == ::ds::CpuIsa::avx512_bf16 ? ::ds::avx512_bf16::__VA_ARGS__ \
   : (isa) == ::ds::CpuIsa::avx512    ? ::ds::avx512::__VA_ARGS__      \
   : (isa) == ::ds::CpuIsa::avx2      ? ::ds::avx2::__VA_ARGS__        \
                                      : ::ds::scalar::__VA_ARGS__)
#elif defined(__aarch64__)
#define DS_ON_PATH(isa, ...) \
  ((isa) == ::ds::CpuIsa::neon ? ::ds::neon::__VA_ARGS__ : ::ds::scalar::__VA_ARGS__)
#else
#define DS_ON_PATH(isa, ...) ((void)(isa), ::ds::scalar::__VA_ARGS__)
#endif
#endif

#define DS_ISA scalar
#define DS_TARGET
#include DS_KERNEL_FILE
#undef DS_ISA
#undef DS_TARGET

#if defined(__x86_64__)

#define DS_ISA avx2
#define DS_TARGET DS_TARGET_AVX2
#include DS_KERNEL_FILE
#undef DS_ISA
#undef DS_TARGET

#define DS_ISA avx512
#define DS_TARGET DS_TARGET_AVX512
#include DS_KERNEL_FILE
#undef DS_ISA
#undef DS_TARGET

#define DS_ISA avx512_bf16
#define DS_TARGET DS_TARGET_AVX512_BF16
#include DS_KERNEL_FILE
#undef DS_ISA
#undef DS_TARGET

#elif defined(__aarch64__)

#define DS_ISA neon
#define DS_TARGET
#include DS_KERNEL_FILE
#undef DS_ISA
#undef DS_TARGET

#endif

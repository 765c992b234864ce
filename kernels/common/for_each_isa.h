// Compiles the file DS_KERNEL_FILE once for every code path, with DS_ISA the path's namespace
// (ds::DS_ISA has the vocabulary of simd.h) and DS_TARGET the attribute that each of its functions
// must carry. No #pragma once: that is the point.

#include "simd.h"

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

#endif

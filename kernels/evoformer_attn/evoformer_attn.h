#pragma once

// Attention with the two biases of AlphaFold-type models, forward and backward. No torch.
//
//   s[b, n, h, i, j] = q[b, n, i, h, :]·k[b, n, j, h, :] / √D + bias1[b, n, j] + bias2[b, h, i, j]
//   lse = log Σⱼ e^s,   out[b, n, i, h, :] = Σⱼ e^(s − lse)·v[b, n, j, h, :]
//
// A query whose keys are all masked by −∞ gets out = 0, lse = −∞ and no gradient.
// Of f16, bf16 and f32 the arithmetic is in float, of f64 in double.

#include <cstdint>

#include "ds_op.h"
#include "ds_types.h"

namespace ds {

enum class EvoformerType : std::uint8_t { f32, f16, bf16, f64 };

struct EvoformerSizes {
  std::int64_t batch, sequences, length, heads, dim;  // B, N, L, H, D; D from 8 to 128.
};

// [B, N, L, H, D]; strides in elements, those of D are 1.
struct EvoformerTensor {
  void* data;
  std::int64_t batch, sequence, position, head;
};
// bias1 [B, N, L] and bias2 [B, H, L, L], the last dimension adjacent; a null one is not there, and
// a stride of 0 repeats it (of a gradient: sums over what it was repeated for).
struct EvoformerBias1 {
  void* data;
  std::int64_t batch, sequence;
};
struct EvoformerBias2 {
  void* data;
  std::int64_t batch, head, row;
};
// lse and delta [B, N, H, L], positions adjacent: f32, or f64 if all is.
struct EvoformerRows {
  void* data;
  std::int64_t batch, sequence, head;
};

struct EvoformerProblem {
  EvoformerSizes sizes;
  EvoformerType type;  // Of all but lse, delta and the biases' gradients.
  EvoformerTensor q, k, v;
  EvoformerBias1 bias1;
  EvoformerBias2 bias2;
  EvoformerTensor out;  // Written forward, read backward; and so is lse.
  EvoformerRows lse;
};

struct EvoformerGradients {
  EvoformerTensor out;      // Read.
  EvoformerRows delta;      // Written: Σ out·grad over D.
  EvoformerTensor q, k, v;  // Written.
  EvoformerType bias_type;
  EvoformerBias1 bias1;  // Written if not null.
  EvoformerBias2 bias2;
};

// The result does not depend on the number of threads nor on the code path, to the last bit. Empty
// problems are allowed. Throws std::invalid_argument, before anything is written, for sizes out of
// range and null pointers.
DS_EXPORT void evoformer_attn(const EvoformerProblem& problem, const CpuOptions& cpu);
DS_EXPORT void evoformer_attn_backward(const EvoformerProblem& problem,
                                       const EvoformerGradients& gradients, const CpuOptions& cpu);

}  // namespace ds

extern "C" DS_EXPORT int ds_self_test_evoformer_attn(const char* device, char* detail,
                                                     unsigned long detail_size);

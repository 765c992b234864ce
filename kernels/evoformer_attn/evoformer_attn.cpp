// evoformer_attn on the CPU: the problem in the words of cpu_attention.h, and the self-test.

#include "evoformer_attn.h"

#include <cmath>
#include <stdexcept>
#include <string>

#include "cpu_attention.h"
#include "reference.h"
#include "self_test.h"

namespace ds {
namespace {

static_assert(static_cast<int>(EvoformerType::f64) == static_cast<int>(attention::Real::f64) &&
              static_cast<int>(EvoformerType::bf16) == static_cast<int>(attention::Real::bf16));

void refuse(const std::string& what) {
  throw std::invalid_argument("ds::evoformer_attn: " + what);
}

// False if there is nothing to compute.
bool check(const EvoformerProblem& p) {
  const EvoformerSizes& s = p.sizes;
  if (s.batch < 0 || s.sequences < 0 || s.length < 0 || s.heads < 0) refuse("a size is negative");
  if (s.dim < 8 || s.dim > 128) {
    refuse("the heads' dimension must be from 8 to 128 (it is " + std::to_string(s.dim) + ")");
  }
  if (p.type > EvoformerType::f64) refuse("unknown type");
  if (s.batch == 0 || s.sequences == 0 || s.length == 0 || s.heads == 0) return false;
  for (const void* data : {p.q.data, p.k.data, p.v.data, p.out.data, p.lse.data}) {
    if (data == nullptr) refuse("q, k, v, out or lse is null");
  }
  return true;
}

// Slices are [B, N, H].
attention::Rows rows_of(const EvoformerTensor& t) {
  return {t.data, {t.batch, t.sequence, t.head}, t.position};
}
attention::Rows rows_of(const EvoformerRows& r) {
  return {r.data, {r.batch, r.sequence, r.head}, 0};
}
attention::Rows rows_of(const EvoformerBias1& b) {
  return {b.data, {b.batch, b.sequence, 0}, 0};
}
attention::Rows rows_of(const EvoformerBias2& b) {
  return {b.data, {b.batch, 0, b.head}, b.row};
}

attention::Problem problem_of(const EvoformerProblem& p) {
  attention::Problem problem;
  problem.slices = {p.sizes.batch, p.sizes.sequences, p.sizes.heads};
  problem.queries = problem.keys = p.sizes.length;
  problem.dim = p.sizes.dim;
  problem.scale = 1 / std::sqrt(static_cast<double>(p.sizes.dim));
  problem.type = static_cast<attention::Real>(p.type);
  problem.q = rows_of(p.q);
  problem.k = rows_of(p.k);
  problem.v = rows_of(p.v);
  problem.key_bias = rows_of(p.bias1);
  problem.pair_bias = rows_of(p.bias2);
  problem.out = rows_of(p.out);
  problem.lse = rows_of(p.lse);
  return problem;
}

void self_test(CpuIsa isa, Comparison& comparison) {
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    for (const int biases : {0, 1, 2, 3}) {
      EvoformerCase one({1, 2, biases == 3 ? 67 : 19, 2, 24}, type, biases % 2 == 1, biases > 1);
      evoformer_attn(one.problem(), {1, isa});
      evoformer_attn_backward(one.problem(), one.gradients(), {1, isa});
      one.compare(comparison);
    }
  }
}

}  // namespace

void evoformer_attn(const EvoformerProblem& problem, const CpuOptions& cpu) {
  if (check(problem)) attention::forward<true>(problem_of(problem), cpu);
}

void evoformer_attn_backward(const EvoformerProblem& problem, const EvoformerGradients& gradients,
                             const CpuOptions& cpu) {
  if (!check(problem)) return;
  for (const void* data : {gradients.out.data, gradients.delta.data, gradients.q.data,
                           gradients.k.data, gradients.v.data}) {
    if (data == nullptr) refuse("a gradient of out, q, k or v, or delta, is null");
  }
  attention::Gradients g;
  g.out = rows_of(gradients.out);
  g.delta = rows_of(gradients.delta);
  g.q = rows_of(gradients.q);
  g.k = rows_of(gradients.k);
  g.v = rows_of(gradients.v);
  g.bias_type = static_cast<attention::Real>(gradients.bias_type);
  g.key_bias = rows_of(gradients.bias1);
  g.pair_bias = rows_of(gradients.bias2);
  attention::backward<true>(problem_of(problem), g, cpu);
}

}  // namespace ds

int ds_self_test_evoformer_attn(const char* device, char* detail, unsigned long detail_size) {
  return ds::cpu_self_test(device, detail, detail_size, "12 cases", ds::self_test);
}

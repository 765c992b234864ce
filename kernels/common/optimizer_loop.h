// The loop of an element-wise optimizer, for the code path DS_ISA. Included by an op's kernel file,
// which for_each_isa.h compiles once per path; hence no #pragma once.
//
// A Rule has: `using Factors`; `static constexpr int kStates`; a constructor from Factors that
// broadcasts them; update(param, grad, state0, state1), which computes one vector in place (with
// one state, state1 is not to be used).

namespace ds::DS_ISA {
namespace {

template <class Rule, class P, class G, class S>
DS_TARGET void optimizer_loop(const Piece& piece, const void* factors) {
  // A copy in registers: the stores below could alias the factors for all the compiler knows.
  const Rule rule(*static_cast<const typename Rule::Factors*>(factors));
  P* const p = static_cast<P*>(piece.param);
  const G* const g = static_cast<const G*>(piece.grad);
  S* const s0 = static_cast<S*>(piece.states[0]);
  S* const s1 = static_cast<S*>(piece.states[1]);
  const std::int64_t size = piece.size;
  std::int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    Vec param = load(p + i);
    const Vec grad = load(g + i);
    Vec state0 = load(s0 + i);
    Vec state1 = state0;
    if constexpr (Rule::kStates > 1) state1 = load(s1 + i);
    rule.update(param, grad, state0, state1);
    store(p + i, param);
    store(s0 + i, state0);
    if constexpr (Rule::kStates > 1) store(s1 + i, state1);
  }
  if (const std::int64_t rest = size - i; rest > 0) {
    Vec param = load(p + i, rest);
    const Vec grad = load(g + i, rest);
    Vec state0 = load(s0 + i, rest);
    Vec state1 = state0;
    if constexpr (Rule::kStates > 1) state1 = load(s1 + i, rest);
    rule.update(param, grad, state0, state1);
    store(p + i, param, rest);
    store(s0 + i, state0, rest);
    if constexpr (Rule::kStates > 1) store(s1 + i, state1, rest);
  }
}

template <class Rule, class P, class S>
Kernel kernel_for_grad(DType grad) {
  switch (grad) {
    case DType::f32:
      return optimizer_loop<Rule, P, float, S>;
    case DType::f16:
      return optimizer_loop<Rule, P, f16, S>;
    case DType::bf16:
      return optimizer_loop<Rule, P, bf16, S>;
  }
  return nullptr;
}

// For types that check_tensors has passed.
template <class Rule>
Kernel kernel_for(const OptimizerTensor& tensor) {
  const bool wide = tensor.state_dtype == DType::f32;
  switch (tensor.param_dtype) {
    case DType::f32:
      return kernel_for_grad<Rule, float, float>(tensor.grad_dtype);
    case DType::f16:
      return wide ? kernel_for_grad<Rule, f16, float>(tensor.grad_dtype)
                  : kernel_for_grad<Rule, f16, f16>(tensor.grad_dtype);
    case DType::bf16:
      return wide ? kernel_for_grad<Rule, bf16, float>(tensor.grad_dtype)
                  : kernel_for_grad<Rule, bf16, bf16>(tensor.grad_dtype);
  }
  return nullptr;
}

}  // namespace
}  // namespace ds::DS_ISA

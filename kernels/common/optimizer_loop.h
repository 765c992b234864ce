// The loop of an element-wise optimizer, for the code path DS_ISA. Included by an op's kernel file,
// which for_each_isa.h compiles once per path; hence no #pragma once.
//
// A Rule has: `using Factors`, with `grad_multiplier`; `static constexpr int kStates`; a
// constructor from Factors that broadcasts them; update(param, grad, state0, state1), which
// computes one vector in place (with one state, state1 is not to be used).

namespace ds::DS_ISA {
namespace {

// The flag in an integer register. Left to itself GCC compares the floats that it came from in
// every vector, on the ports that the arithmetic needs.
DS_TARGET DS_INLINE bool settled(bool flag) {
#if defined(__GNUC__)
  unsigned in_register = flag;
  __asm__("" : "+r"(in_register));
  return in_register != 0;
#else
  return flag;
#endif
}

// What one vector of elements becomes.
struct Updated {
  Vec param, state0, state1;
};

// What the gradients are multiplied by; most are by 1, which is left out.
struct Multiplier {
  Vec value;
  bool is_needed;

  DS_TARGET DS_INLINE explicit Multiplier(float by)
      : value(set1(by)), is_needed(settled(by != 1.0f)) {}
  DS_TARGET DS_INLINE Vec of(Vec grad) const { return is_needed ? grad * value : grad; }
};

// The full vector from element i on. There may be no second state, and so no address in it.
template <class Rule, class P, class G, class S>
DS_TARGET DS_INLINE Updated updated(const Rule& rule, const Multiplier& multiplier, const P* p,
                                    const G* g, const S* s0, const S* s1, std::int64_t i) {
  Updated u{load(p + i), load(s0 + i), {}};
  if constexpr (Rule::kStates > 1) u.state1 = load(s1 + i);
  rule.update(u.param, multiplier.of(load(g + i)), u.state0, u.state1);
  return u;
}

// C is the type of the 16-bit copy of the new parameter, or NoCopy.
template <class Rule, class C, class P, class G, class S>
DS_TARGET DS_INLINE void optimizer_loop_copying(const Piece& piece, const void* factors) {
  // A copy in registers: the stores below could alias the factors for all the compiler knows.
  const Rule rule(*static_cast<const typename Rule::Factors*>(factors));
  const Multiplier multiplier(static_cast<const typename Rule::Factors*>(factors)->grad_multiplier);
  constexpr bool kCopies = !std::is_same_v<C, NoCopy>;
  [[maybe_unused]] C* const copy = static_cast<C*>(piece.copy);
  P* const p = static_cast<P*>(piece.param);
  const G* const g = static_cast<const G*>(piece.grad);
  S* const s0 = static_cast<S*>(piece.states[0]);
  S* const s1 = static_cast<S*>(piece.states[1]);
  const std::int64_t size = piece.size;
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= size; i += 2 * kLanes) {
    const std::int64_t j = i + kLanes;
    const Updated a = updated(rule, multiplier, p, g, s0, s1, i);
    const Updated b = updated(rule, multiplier, p, g, s0, s1, j);
    store_pair(p + i, a.param, b.param);
    if constexpr (kCopies) store_pair(copy + i, a.param, b.param);
    store_pair(s0 + i, a.state0, b.state0);
    if constexpr (Rule::kStates > 1) store_pair(s1 + i, a.state1, b.state1);
  }
  if (i + kLanes <= size) {
    const Updated a = updated(rule, multiplier, p, g, s0, s1, i);
    store(p + i, a.param);
    if constexpr (kCopies) store(copy + i, a.param);
    store(s0 + i, a.state0);
    if constexpr (Rule::kStates > 1) store(s1 + i, a.state1);
    i += kLanes;
  }
  if (const std::int64_t rest = size - i; rest > 0) {
    Vec param = load(p + i, rest);
    const Vec grad = multiplier.of(load(g + i, rest));
    Vec state0 = load(s0 + i, rest);
    Vec state1 = state0;
    if constexpr (Rule::kStates > 1) state1 = load(s1 + i, rest);
    rule.update(param, grad, state0, state1);
    store(p + i, param, rest);
    if constexpr (kCopies) store(copy + i, param, rest);
    store(s0 + i, state0, rest);
    if constexpr (Rule::kStates > 1) store(s1 + i, state1, rest);
  }
}

template <class Rule, class P, class G, class S>
DS_TARGET void optimizer_loop(const Piece& piece, const void* factors) {
  if (piece.copy == nullptr) {
    optimizer_loop_copying<Rule, NoCopy, P, G, S>(piece, factors);
  } else if (piece.copy_dtype == DType::bf16) {
    optimizer_loop_copying<Rule, bf16, P, G, S>(piece, factors);
  } else {
    optimizer_loop_copying<Rule, f16, P, G, S>(piece, factors);
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
  return for_types(tensor, [&](auto param, auto state) {
    return kernel_for_grad<Rule, decltype(param), decltype(state)>(tensor.grad_dtype);
  });
}

}  // namespace
}  // namespace ds::DS_ISA

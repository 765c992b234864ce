// LAMB for the code path DS_ISA; see for_each_isa.h. 24 bytes of traffic an element in f32 in pass
// A and, where the caches do not hold the tensor, 16 more in pass B.

#include "adam_rule.h"

namespace ds::DS_ISA {
namespace {

// Sums are made in kSumLanes lanes whatever the vectors are, so that every path gives the same
// bits.
inline constexpr int kSumVecs = kSumLanes / kLanes;

struct LambConstants {
  Vec multiplier, weight1, rest1, weight2, rest2, inv_correction1, inv_correction2, eps, eps_inside,
      weight_decay;
  bool mostly_average1, mostly_average2;

  DS_TARGET DS_INLINE explicit LambConstants(const FusedLambFactors& f)
      : multiplier(set1(f.grad_multiplier)),
        weight1(set1(f.weight1)),
        rest1(set1(f.rest1)),
        weight2(set1(f.weight2)),
        rest2(set1(f.rest2)),
        inv_correction1(set1(f.inv_correction1)),
        inv_correction2(set1(f.inv_correction2)),
        eps(set1(f.eps)),
        eps_inside(set1(f.eps_inside)),
        weight_decay(set1(f.weight_decay)),
        mostly_average1(f.weight1 <= 0.5f),
        mostly_average2(f.weight2 <= 0.5f) {}

  DS_TARGET DS_INLINE Vec direction(Vec p, Vec m, Vec v) const {
    return m * inv_correction1 / (sqrt(v + eps_inside) * inv_correction2 + eps) + weight_decay * p;
  }
};

// One vector of pass A from element i on; all of it, or the first `rest` if that is not 0. Returns
// p and u, 0 in lanes without an element.
template <class P, class G, class S>
DS_TARGET DS_INLINE void average(const LambConstants& c, const Piece& piece, std::int64_t i,
                                 std::int64_t rest, Vec& p, Vec& u) {
  S* const s0 = static_cast<S*>(piece.states[0]) + i;
  S* const s1 = static_cast<S*>(piece.states[1]) + i;
  const P* const from = static_cast<const P*>(piece.param) + i;
  const G* const grad = static_cast<const G*>(piece.grad) + i;
  p = rest == 0 ? load(from) : load(from, rest);
  const Vec g = (rest == 0 ? load(grad) : load(grad, rest)) * c.multiplier;
  Vec m = rest == 0 ? load(s0) : load(s0, rest), v = rest == 0 ? load(s1) : load(s1, rest);
  m = blend(m, g, c.weight1, c.rest1, c.mostly_average1);
  v = blend(v, g * g, c.weight2, c.rest2, c.mostly_average2);
  if (rest == 0) {
    store(s0, m);
    store(s1, v);
  } else {
    store(s0, m, rest);
    store(s1, v, rest);
  }
  if constexpr (!std::is_same_v<S, float>) {  // They count as they are stored.
    m = rest == 0 ? load(s0) : load(s0, rest);
    v = rest == 0 ? load(s1) : load(s1, rest);
  }
  u = c.direction(p, m, v);
  if (rest != 0) {  // Where v and eps are 0, u is NaN behind the last element.
    float values[kLanes] = {};
    store(static_cast<float*>(values), u, rest);
    u = load(static_cast<const float*>(values));
  }
}

// Pass A of at most kLambSumChunk elements, few enough to be summed in float.
template <class P, class G, class S>
DS_TARGET void pass_a(const Piece& piece, const FusedLambFactors& factors, NormSquares& sums) {
  const LambConstants c(factors);
  Vec p_squares[kSumVecs], u_squares[kSumVecs];
  for (int k = 0; k < kSumVecs; ++k) p_squares[k] = u_squares[k] = set1(0.0f);
  const auto add = [&](std::int64_t i, std::int64_t rest, int k) DS_TARGET {
    Vec p, u;
    average<P, G, S>(c, piece, i, rest, p, u);
    p_squares[k] = p_squares[k] + p * p;
    u_squares[k] = u_squares[k] + u * u;
  };
  std::int64_t i = 0;
  for (; i + kSumLanes <= piece.size; i += kSumLanes) {
    for (int k = 0; k < kSumVecs; ++k) add(i + k * kLanes, 0, k);
  }
  for (int k = 0; i < piece.size; i += kLanes, ++k) {
    const std::int64_t left = piece.size - i;
    add(i, left < kLanes ? left : 0, k);
  }
  alignas(64) float p_lanes[kSumLanes], u_lanes[kSumLanes];
  for (int k = 0; k < kSumVecs; ++k) {
    store(p_lanes + k * kLanes, p_squares[k]);
    store(u_lanes + k * kLanes, u_squares[k]);
  }
  sums = {0.0, 0.0};
  for (int k = 0; k < kSumLanes; ++k) {
    sums.p += static_cast<double>(p_lanes[k]);
    sums.u += static_cast<double>(u_lanes[k]);
  }
}

// Pass B: p - step·u. C is the type of the copy, or NoCopy.
template <class C, class P, class S>
DS_TARGET DS_INLINE void pass_b_copying(const Piece& piece, const FusedLambFactors& factors,
                                        float step) {
  const LambConstants c(factors);
  const Vec length = set1(step);
  P* const to = static_cast<P*>(piece.param);
  const S* const s0 = static_cast<const S*>(piece.states[0]);
  const S* const s1 = static_cast<const S*>(piece.states[1]);
  constexpr bool kCopies = !std::is_same_v<C, NoCopy>;
  [[maybe_unused]] C* const copy = static_cast<C*>(piece.copy);
  std::int64_t i = 0;
  for (; i + kLanes <= piece.size; i += kLanes) {
    Vec p = load(to + i);
    p = p - length * c.direction(p, load(s0 + i), load(s1 + i));
    store(to + i, p);
    if constexpr (kCopies) store(copy + i, p);
  }
  if (const std::int64_t rest = piece.size - i; rest > 0) {
    Vec p = load(to + i, rest);
    p = p - length * c.direction(p, load(s0 + i, rest), load(s1 + i, rest));
    store(to + i, p, rest);
    if constexpr (kCopies) store(copy + i, p, rest);
  }
}

template <class P, class S>
DS_TARGET void pass_b(const Piece& piece, const FusedLambFactors& factors, float step) {
  if (piece.copy == nullptr) {
    pass_b_copying<NoCopy, P, S>(piece, factors, step);
  } else if (piece.copy_dtype == DType::bf16) {
    pass_b_copying<bf16, P, S>(piece, factors, step);
  } else {
    pass_b_copying<f16, P, S>(piece, factors, step);
  }
}

template <class P, class S>
LambPasses passes_for_grad(DType grad) {
  switch (grad) {
    case DType::f32:
      return {pass_a<P, float, S>, pass_b<P, S>};
    case DType::f16:
      return {pass_a<P, f16, S>, pass_b<P, S>};
    case DType::bf16:
      return {pass_a<P, bf16, S>, pass_b<P, S>};
  }
  return {};
}

inline LambPasses passes_for(const OptimizerTensor& tensor) {
  return for_types(tensor, [&](auto param, auto state) {
    return passes_for_grad<decltype(param), decltype(state)>(tensor.grad_dtype);
  });
}

}  // namespace
}  // namespace ds::DS_ISA

#pragma once

// What evoformer_attn has to compute, in float64: a problem in memory, the answers of its slices,
// and the comparison of every number.

#include <functional>
#include <vector>

#include "attention_reference.h"
#include "evoformer_attn.h"
#include "self_test.h"

namespace ds {

struct EvoformerCase {
  EvoformerSizes sizes;
  DType type;
  bool has_bias1, has_bias2;
  Buffer q, k, v, bias1, bias2, grad, out, lse, delta, grad_q, grad_k, grad_v, grad_bias1,
      grad_bias2;

  EvoformerCase(const EvoformerSizes& s, DType t, bool with_bias1, bool with_bias2)
      : sizes(s),
        type(t),
        has_bias1(with_bias1),
        has_bias2(with_bias2),
        q(t, elements()),
        k(t, elements()),
        v(t, elements()),
        bias1(t, s.batch * s.sequences * s.length),
        bias2(t, s.batch * s.heads * s.length * s.length),
        grad(t, elements()),
        out(t, elements()),
        lse(DType::f32, s.batch * s.sequences * s.length * s.heads),
        delta(lse),
        grad_q(q),
        grad_k(q),
        grad_v(q),
        grad_bias1(DType::f32, s.batch * s.sequences * s.length),
        grad_bias2(DType::f32, s.batch * s.heads * s.length * s.length) {
    Random random(static_cast<std::uint64_t>(s.length * 131 + s.dim));
    for (std::int64_t i = 0; i < elements(); ++i) {
      for (Buffer* b : {&q, &k, &v, &grad}) b->set(i, 2 * random.next());
    }
    for (std::int64_t i = 0; i < s.batch * s.sequences * s.length; ++i) {
      bias1.set(i, i % 7 == 3 ? -std::numeric_limits<double>::infinity() : 2 * random.next());
    }
    for (std::int64_t i = 0; i < s.batch * s.heads * s.length * s.length; ++i) {
      bias2.set(i, 2 * random.next());
    }
  }
  std::int64_t elements() const {
    return sizes.batch * sizes.sequences * sizes.length * sizes.heads * sizes.dim;
  }
  std::int64_t at(std::int64_t b, std::int64_t n, std::int64_t i, std::int64_t h) const {
    return (((b * sizes.sequences + n) * sizes.length + i) * sizes.heads + h) * sizes.dim;
  }

  EvoformerTensor tensor(Buffer& x) const {
    return {x.data(), at(1, 0, 0, 0), at(0, 1, 0, 0), at(0, 0, 1, 0), sizes.dim};
  }
  EvoformerRows rows(Buffer& x) const {
    const std::int64_t slice = sizes.heads * sizes.length;
    return {x.data(), sizes.sequences * slice, slice, sizes.length};
  }
  EvoformerBias1 first(Buffer& x) const {
    if (!has_bias1) return {};
    return {x.data(), sizes.sequences * sizes.length, sizes.length};
  }
  EvoformerBias2 second(Buffer& x) const {
    if (!has_bias2) return {};
    const std::int64_t matrix = sizes.length * sizes.length;
    return {x.data(), sizes.heads * matrix, matrix, sizes.length};
  }
  EvoformerType element_type() const {
    return type == DType::f32   ? EvoformerType::f32
           : type == DType::f16 ? EvoformerType::f16
                                : EvoformerType::bf16;
  }
  EvoformerProblem problem() {
    return {sizes,        element_type(), tensor(q),   tensor(k), tensor(v),
            first(bias1), second(bias2),  tensor(out), rows(lse)};
  }
  EvoformerGradients gradients() {
    return {tensor(grad),   rows(delta),        tensor(grad_q),    tensor(grad_k),
            tensor(grad_v), EvoformerType::f32, first(grad_bias1), second(grad_bias2)};
  }

  void compare(Comparison& c) const {
    const std::int64_t length = sizes.length;
    std::vector<Expected> of_bias1(
        static_cast<std::size_t>(sizes.batch * sizes.sequences * length));
    std::vector<Expected> of_bias2(
        static_cast<std::size_t>(sizes.batch * sizes.heads * length * length));
    const auto add = [](Expected& to, const Expected& x) {
      to.value += x.value;
      to.scale += x.scale;
    };
    for (std::int64_t b = 0; b < sizes.batch; ++b) {
      for (std::int64_t n = 0; n < sizes.sequences; ++n) {
        for (std::int64_t h = 0; h < sizes.heads; ++h) {
          const AttentionReference want = slice(b, n, h);
          compare_slice(c, want, b, n, h);
          for (std::int64_t ij = 0; ij < length * length; ++ij) {
            const Expected& slope = want.grad_s[static_cast<std::size_t>(ij)];
            const std::int64_t row = (b * sizes.sequences + n) * length;
            add(of_bias1[static_cast<std::size_t>(row + ij % length)], slope);
            const std::int64_t matrix = (b * sizes.heads + h) * length * length;
            add(of_bias2[static_cast<std::size_t>(matrix + ij)], slope);
          }
        }
      }
    }
    const double extra = attention_ulp(DType::f32, true) + (type == DType::f16    ? 0x1p13
                                                            : type == DType::bf16 ? 0x1p16
                                                                                  : 0.0);
    const auto all = [&](const char* name, const Buffer& got, const std::vector<Expected>& wanted) {
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        c.check(name, static_cast<std::int64_t>(i), got, wanted[i], extra);
      }
    };
    if (has_bias1) all("grad_bias1", grad_bias1, of_bias1);
    if (has_bias2) all("grad_bias2", grad_bias2, of_bias2);
    for (const Buffer* b : {&out, &lse, &delta, &grad_q, &grad_k, &grad_v}) {
      if (!b->guard_is_intact()) c.fail("wrote behind the last element");
    }
  }

 private:
  AttentionReference slice(std::int64_t b, std::int64_t n, std::int64_t h) const {
    const std::int64_t length = sizes.length;
    AttentionReference want(length, length, sizes.dim,
                            1 / std::sqrt(static_cast<double>(sizes.dim)));
    for (std::int64_t i = 0; i < length; ++i) {
      for (std::int64_t d = 0; d < sizes.dim; ++d) {
        const auto to = static_cast<std::size_t>(i * sizes.dim + d);
        const std::int64_t from = at(b, n, i, h) + d;
        want.q[to] = q.get(from), want.k[to] = k.get(from);
        want.v[to] = v.get(from), want.grad[to] = grad.get(from);
      }
      for (std::int64_t j = 0; j < length; ++j) {
        double& bias = want.bias[static_cast<std::size_t>(i * length + j)];
        if (has_bias1) bias += bias1.get((b * sizes.sequences + n) * length + j);
        if (has_bias2) bias += bias2.get(((b * sizes.heads + h) * length + i) * length + j);
      }
    }
    want.compute();
    return want;
  }

  void compare_slice(Comparison& c, const AttentionReference& want, std::int64_t b, std::int64_t n,
                     std::int64_t h) const {
    const double forward = attention_ulp(type, false), backward = attention_ulp(type, true);
    for (std::int64_t i = 0; i < sizes.length; ++i) {
      c.check("lse", ((b * sizes.sequences + n) * sizes.heads + h) * sizes.length + i, lse,
              want.lse[static_cast<std::size_t>(i)]);
      for (std::int64_t d = 0; d < sizes.dim; ++d) {
        const auto x = static_cast<std::size_t>(i * sizes.dim + d);
        const std::int64_t to = at(b, n, i, h) + d;
        c.check("out", to, out, want.out[x], forward);
        c.check("grad_q", to, grad_q, want.grad_q[x], backward);
        c.check("grad_k", to, grad_k, want.grad_k[x], backward);
        c.check("grad_v", to, grad_v, want.grad_v[x], backward);
      }
    }
  }
};

}  // namespace ds

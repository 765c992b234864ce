// Rows of a layer, forward and backward, for the code path DS_ISA.

#include "block16.h"

namespace ds::DS_ISA {
namespace {

// Elements [i, i + 16) of all, i a multiple of 8.
DS_TARGET DS_INLINE Block factors_of(const DropoutPlan& dropout, std::int64_t i) {
  float factors[kBlock];
  dropout_factors(dropout, i / 8, factors);
  dropout_factors(dropout, i / 8 + 1, factors + 8);
  return load16(static_cast<const float*>(factors));
}

// An element's bits are those of its place among all, so a row need not begin with a group.
DS_TARGET DS_INLINE Block factors_from(const DropoutPlan& dropout, std::int64_t i) {
  if (i % 8 == 0) return factors_of(dropout, i);
  float factors[24];
  for (int g = 0; g < 3; ++g) dropout_factors(dropout, i / 8 + g, factors + 8 * g);
  return load16(static_cast<const float*>(factors) + i % 8);
}

template <class T>
DS_TARGET void add(const DropoutAdd& call, const DropoutPlan& dropout, std::int64_t first,
                   std::int64_t last) {
  const std::int64_t columns = call.columns;
  const T* bias = static_cast<const T*>(call.bias);
  for (std::int64_t row = first; row < last; ++row) {
    const T* x = static_cast<const T*>(call.x) + row * columns;
    const T* residual = static_cast<const T*>(call.residual) + row * columns;
    T* out = static_cast<T*>(call.out) + row * columns;
    for (std::int64_t i = 0; i < columns; i += kBlock) {
      const std::int64_t n = in_block(i, columns);
      Block value = load16(x + i, n) + load16(bias + i, n);
      if (dropout.threshold > 0) value *= factors_from(dropout, row * columns + i);
      store16(out + i, value + load16(residual + i, n), n);
    }
  }
}

// Units are elements, in shares that begin with a block.
template <class T>
DS_TARGET void drop(const DropoutBackward& call, const DropoutPlan& dropout, std::int64_t first,
                    std::int64_t last) {
  const T* grad = static_cast<const T*>(call.grad_out);
  T* to = static_cast<T*>(call.grad_x);
  for (std::int64_t i = first; i < last; i += kBlock) {
    const std::int64_t n = in_block(i, last);
    Block value = load16(grad + i, n);
    if (dropout.threshold > 0) value *= factors_of(dropout, i);
    store16(to + i, value, n);
  }
}

// sum over the row of f(i, n), which gives 0 in lanes without an element. Floats lose digits in
// long sums, so every 1,024 terms go on in double.
template <class Term>
DS_TARGET DS_INLINE double sum_of(std::int64_t columns, const Term& term) {
  constexpr std::int64_t kRun = 1024;
  double sum = 0.0;
  for (std::int64_t at = 0; at < columns; at += kRun) {
    const std::int64_t end = columns - at < kRun ? columns : at + kRun;
    Block part{};
    for (std::int64_t i = at; i < end; i += kBlock) term.add(part, i, in_block(i, columns));
    sum += static_cast<double>(sum16(part));
  }
  return sum;
}

DS_TARGET DS_INLINE Block only(const Block& x, std::int64_t n) {
  return n == kBlock ? x : load16(reinterpret_cast<const float*>(&x), n);
}

template <class T>
struct Values {
  const T* x;
  DS_TARGET DS_INLINE void add(Block& part, std::int64_t i, std::int64_t n) const {
    part += load16(x + i, n);
  }
};
template <class T>
struct Squares {
  const T* x;
  float mean;
  DS_TARGET DS_INLINE void add(Block& part, std::int64_t i, std::int64_t n) const {
    const Block away = only(load16(x + i, n) - mean, n);
    part += away * away;
  }
};
struct Products {
  const float *x, *y;
  DS_TARGET DS_INLINE void add(Block& part, std::int64_t i, std::int64_t) const {
    part += load16(x + i) * load16(y + i);
  }
};

template <class T>
DS_TARGET void norm(const LayerNorm& call, std::int64_t first, std::int64_t last) {
  const std::int64_t columns = call.columns;
  const auto count = static_cast<double>(columns);
  const T *gamma = static_cast<const T*>(call.gamma), *beta = static_cast<const T*>(call.beta);
  for (std::int64_t row = first; row < last; ++row) {
    const T* x = static_cast<const T*>(call.x) + row * columns;
    T* out = static_cast<T*>(call.out) + row * columns;
    const auto mean = static_cast<float>(sum_of(columns, Values<T>{x}) / count);
    const auto factor = static_cast<float>(
        1.0 / __builtin_sqrt(sum_of(columns, Squares<T>{x, mean}) / count + call.epsilon));
    call.factors[row] = factor;
    for (std::int64_t i = 0; i < columns; i += kBlock) {
      const std::int64_t n = in_block(i, columns);
      store16(out + i,
              (load16(x + i, n) - mean) * factor * load16(gamma + i, n) + load16(beta + i, n), n);
    }
  }
}

// grad_x = factor·(g − mean(g) − n·mean(g·n)), g = grad_out·gamma, n the normalized row. `sums` are
// those of grad_out·n, then of grad_out, of the rows [first, last). `scratch` is two rows.
template <class T>
DS_TARGET void norm_backward(const LayerNormBackward& call, std::int64_t first, std::int64_t last,
                             float* sums, float* scratch) {
  const std::int64_t columns = call.columns, width = (columns + kBlock - 1) / kBlock * kBlock;
  const auto count = static_cast<double>(columns);
  const T *gamma = static_cast<const T*>(call.gamma), *beta = static_cast<const T*>(call.beta);
  float *normal = scratch, *weighted = scratch + width;
  for (std::int64_t row = first; row < last; ++row) {
    const T* from = static_cast<const T*>(call.x != nullptr ? call.x : call.out) + row * columns;
    const T* grad_out = static_cast<const T*>(call.grad_out) + row * columns;
    T* grad_x = static_cast<T*>(call.grad_x) + row * columns;
    const float factor = call.factors[row];
    const float mean =
        call.x == nullptr ? 0.0f : static_cast<float>(sum_of(columns, Values<T>{from}) / count);
    for (std::int64_t i = 0; i < columns; i += kBlock) {
      const std::int64_t n = in_block(i, columns);
      const Block grad = load16(grad_out + i, n), g = load16(gamma + i, n);
      const Block value = load16(from + i, n);
      const Block n_row =
          only(call.x != nullptr ? (value - mean) * factor : (value - load16(beta + i, n)) / g, n);
      store16(normal + i, n_row);
      store16(weighted + i, grad * g);
      store16(sums + i, load16(sums + i) + grad * n_row);
      store16(sums + width + i, load16(sums + width + i) + grad);
    }
    const auto of_grad = static_cast<float>(sum_of(columns, Values<float>{weighted}) / count);
    const auto of_both = static_cast<float>(sum_of(columns, Products{weighted, normal}) / count);
    for (std::int64_t i = 0; i < columns; i += kBlock) {
      store16(grad_x + i, (load16(weighted + i) - of_grad - load16(normal + i) * of_both) * factor,
              in_block(i, columns));
    }
  }
}

// With u = sqrt(2/pi)·(x + 0.044715·x³) and s = 1/(1 + e^-2u): gelu = x·s and its derivative
// s + x·s·(1 − s)·2u'.
DS_TARGET DS_INLINE Block gelu_slope16(const Block& x) {
  const Block s = sigmoid16(1.5957691216f * (x + 0.044715f * (x * x * x)));
  const Block slope = 1.5957691216f * (1.0f + 0.134145f * (x * x));
  const Block rest = x * s * (1.0f - s) * slope;
  // Where s is 0 or 1 the slope may be infinite, and the product is no number.
  return s + ((s > splat(0.0f)) & (s < splat(1.0f)) ? rest : splat(0.0f));
}

template <class T>
DS_TARGET void gelu(const BiasGelu& call, std::int64_t first, std::int64_t last) {
  const std::int64_t columns = call.columns;
  const T* bias = static_cast<const T*>(call.bias);
  for (std::int64_t row = first; row < last; ++row) {
    const T* x = static_cast<const T*>(call.x) + row * columns;
    const T* grad =
        call.grad_out == nullptr ? nullptr : static_cast<const T*>(call.grad_out) + row * columns;
    T* out = static_cast<T*>(call.out) + row * columns;
    for (std::int64_t i = 0; i < columns; i += kBlock) {
      const std::int64_t n = in_block(i, columns);
      const Block value = load16(x + i, n) + load16(bias + i, n);
      const Block result =
          grad == nullptr ? tanh_gelu16(value) : load16(grad + i, n) * gelu_slope16(value);
      store16(out + i, result, n);
    }
  }
}

template <class T>
constexpr RowKernels kRowKernels = {add<T>, drop<T>, norm<T>, norm_backward<T>, gelu<T>};

inline const RowKernels& row_kernels(DType dtype) {
  return dtype == DType::f32   ? kRowKernels<float>
         : dtype == DType::f16 ? kRowKernels<f16>
                               : kRowKernels<bf16>;
}

}  // namespace
}  // namespace ds::DS_ISA

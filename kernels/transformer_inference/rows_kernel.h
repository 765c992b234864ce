// Rows of elements, for the code path DS_ISA. Bound by memory: a row passes once, the passes after
// the first of a norm find it in the cache.

#include "block16.h"

namespace ds::DS_ISA {
namespace {

template <class T>
const T* row_of(const void* all, std::int64_t row, std::int64_t columns) {
  return static_cast<const T*>(all) + row * columns;
}

// Floats lose digits in long sums, so every 1,024 terms go on in double.
constexpr std::int64_t kRun = 1024;

// sum((row[i] − from)^power) over `size` elements of a row of whole blocks.
template <int kPower>
DS_TARGET DS_INLINE double sum_of(const float* row, std::int64_t size, float from) {
  double sum = 0.0;
  for (std::int64_t at = 0; at < size; at += kRun) {
    const std::int64_t end = size - at < kRun ? size : at + kRun;
    Block part{};
    for (std::int64_t i = at; i < end; i += kBlock) {
      Block term = load16(row + i) - from;
      if constexpr (kPower == 2) term *= term;
      if (const std::int64_t n = in_block(i, size); n < kBlock) {
        term = load16(reinterpret_cast<const float*>(&term), n);
      }
      part += term;
    }
    sum += static_cast<double>(sum16(part));
  }
  return sum;
}

template <class T>
DS_TARGET void norm(const NormRows& call, std::int64_t first, std::int64_t last, float* scratch) {
  const std::int64_t columns = call.columns;
  const T* bias = static_cast<const T*>(call.bias);
  const T* gamma = static_cast<const T*>(call.gamma);
  const T* beta = static_cast<const T*>(call.beta);
  for (std::int64_t row = first; row < last; ++row) {
    const T* x = row_of<T>(call.x, row, columns);
    const T* residual = call.residual == nullptr ? nullptr : row_of<T>(call.residual, row, columns);
    T* sum = call.sum == nullptr ? nullptr : static_cast<T*>(call.sum) + row * columns;
    for (std::int64_t i = 0; i < columns; i += kBlock) {
      const std::int64_t n = in_block(i, columns);
      Block value = load16(x + i, n);
      if (residual != nullptr) value += load16(residual + i, n);
      if (bias != nullptr) value += load16(bias + i, n);
      store16(scratch + i, value);
      if (sum != nullptr) store16(sum + i, value, n);
    }
    const auto count = static_cast<double>(columns);
    const float mean = call.kind == NormKind::layer
                           ? static_cast<float>(sum_of<1>(scratch, columns, 0.0f) / count)
                           : 0.0f;
    const auto factor = static_cast<float>(
        1.0 / __builtin_sqrt(sum_of<2>(scratch, columns, mean) / count + call.epsilon));
    T* out = static_cast<T*>(call.out) + row * columns;
    for (std::int64_t i = 0; i < columns; i += kBlock) {
      const std::int64_t n = in_block(i, columns);
      Block value = (load16(scratch + i) - mean) * factor * load16(gamma + i, n);
      if (beta != nullptr) value += load16(beta + i, n);
      store16(out + i, value, n);
    }
  }
}

template <Activation kActivation>
DS_TARGET DS_INLINE Block activated(const Block& x) {
  if constexpr (kActivation == Activation::relu) return x < splat(0.0f) ? splat(0.0f) : x;
  if constexpr (kActivation == Activation::gelu_tanh) return tanh_gelu16(x);
  if constexpr (kActivation == Activation::gelu) return erf_gelu16(x);
  if constexpr (kActivation == Activation::silu) return x * sigmoid16(x);
  return x;
}

template <class T, Activation kActivation>
DS_TARGET void activate(const ActivationRows& call, std::int64_t first, std::int64_t last) {
  const std::int64_t columns = call.columns, width = call.gated ? 2 * columns : columns;
  const T* bias = static_cast<const T*>(call.bias);
  for (std::int64_t row = first; row < last; ++row) {
    const T* x = row_of<T>(call.x, row, width);
    T* out = static_cast<T*>(call.out) + row * columns;
    for (std::int64_t i = 0; i < columns; i += kBlock) {
      const std::int64_t n = in_block(i, columns);
      Block value = load16(x + i, n);
      if (bias != nullptr) value += load16(bias + i, n);
      if (call.gated) {
        Block gate = load16(x + columns + i, n);
        if (bias != nullptr) gate += load16(bias + columns + i, n);
        value *= activated<kActivation>(gate);
      } else {
        value = activated<kActivation>(value);
      }
      store16(out + i, value, n);
    }
  }
}

template <class T>
DS_TARGET void activation(const ActivationRows& call, std::int64_t first, std::int64_t last) {
  switch (call.activation) {
    case Activation::identity:
      return activate<T, Activation::identity>(call, first, last);
    case Activation::relu:
      return activate<T, Activation::relu>(call, first, last);
    case Activation::gelu_tanh:
      return activate<T, Activation::gelu_tanh>(call, first, last);
    case Activation::gelu:
      return activate<T, Activation::gelu>(call, first, last);
    case Activation::silu:
      return activate<T, Activation::silu>(call, first, last);
  }
}

template <class T>
DS_TARGET void residual(const ResidualRows& call, std::int64_t first, std::int64_t last) {
  const std::int64_t columns = call.columns;
  const T* bias = static_cast<const T*>(call.bias);
  const T* attention_bias = static_cast<const T*>(call.attention_bias);
  const auto scale = static_cast<float>(call.scale);
  for (std::int64_t row = first; row < last; ++row) {
    T* to = static_cast<T*>(call.residual) + row * columns;
    const T* hidden = row_of<T>(call.hidden, row, columns);
    const T* attention =
        call.attention == nullptr ? nullptr : row_of<T>(call.attention, row, columns);
    for (std::int64_t i = 0; i < columns; i += kBlock) {
      const std::int64_t n = in_block(i, columns);
      Block scaled = load16(to + i, n), plain = load16(hidden + i, n);
      if (bias != nullptr) scaled += load16(bias + i, n);
      if (attention_bias != nullptr) scaled += load16(attention_bias + i, n);
      if (attention != nullptr) {
        (call.scale_attention ? scaled : plain) += load16(attention + i, n);
      }
      store16(to + i, scaled * scale + plain, n);
    }
  }
}

template <class T>
DS_TARGET void moe(const MoeRows& call, std::int64_t first, std::int64_t last) {
  const std::int64_t columns = call.columns;
  const T* of_residual = static_cast<const T*>(call.coefficients);
  for (std::int64_t row = first; row < last; ++row) {
    T* out = static_cast<T*>(call.out) + row * columns;
    const T* from = row_of<T>(call.residual, row, columns);
    for (std::int64_t i = 0; i < columns; i += kBlock) {
      const std::int64_t n = in_block(i, columns);
      store16(out + i,
              load16(out + i, n) * load16(of_residual + columns + i, n) +
                  load16(from + i, n) * load16(of_residual + i, n),
              n);
    }
  }
}

template <class T>
DS_TARGET void dequantize(const DequantizeRows& call, std::int64_t first, std::int64_t last) {
  const std::int64_t rows_of_group = call.rows / call.groups;
  for (std::int64_t row = first; row < last; ++row) {
    const std::int8_t* q = call.q + row * call.columns;
    const float scale = call.scales[row / rows_of_group];
    T* out = static_cast<T*>(call.out) + row * call.columns;
    for (std::int64_t i = 0; i < call.columns; i += kBlock) {
      const std::int64_t n = in_block(i, call.columns);
      float wide[kBlock] = {};
      for (std::int64_t k = 0; k < n; ++k) wide[k] = static_cast<float>(q[i + k]);
      store16(out + i, load16(static_cast<const float*>(wide)) * scale, n);
    }
  }
}

template <class T>
constexpr RowKernels kRowKernels = {norm<T>, activation<T>, residual<T>, moe<T>, dequantize<T>};

inline const RowKernels& row_kernels(DType dtype) {
  return dtype == DType::f32   ? kRowKernels<float>
         : dtype == DType::f16 ? kRowKernels<f16>
                               : kRowKernels<bf16>;
}

}  // namespace
}  // namespace ds::DS_ISA

// The sum of a run of elements, for the code path DS_ISA. Bound by memory: each image passes once.

namespace ds::DS_ISA {
namespace {

template <class T, int kTerms>
DS_TARGET DS_INLINE Vec sum_of(Vec x, Vec bias, Vec other, Vec other_bias) {
  Vec value = x + bias;
  if constexpr (kTerms == 2) value = value + other;
  if constexpr (kTerms == 3) value = value + (other + other_bias);
  return value;
}

template <class T, int kTerms>
DS_TARGET void add_biases(const SpatialRun& run) {
  const T* x = static_cast<const T*>(run.x) + run.first;
  const T* other = kTerms > 1 ? static_cast<const T*>(run.other) + run.first : x;
  T* out = static_cast<T*>(run.out) + run.first;
  std::int64_t left = run.last - run.first;
  std::int64_t at = run.first % run.period;
  while (left > 0) {
    const float* bias = run.bias + at;
    const float* other_bias = kTerms > 2 ? run.other_bias + at : bias;
    const std::int64_t size = left < run.period - at ? left : run.period - at;
    std::int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) {
      store(out + i,
            sum_of<T, kTerms>(load(x + i), load(bias + i), load(other + i), load(other_bias + i)));
    }
    if (const std::int64_t rest = size - i; rest > 0) {
      store(out + i,
            sum_of<T, kTerms>(load(x + i, rest), load(bias + i, rest), load(other + i, rest),
                              load(other_bias + i, rest)),
            rest);
    }
    x += size;
    other += size;
    out += size;
    left -= size;
    at = 0;
  }
}

template <class T>
SpatialKernel kernel_for_terms(int terms) {
  return terms == 1 ? add_biases<T, 1> : terms == 2 ? add_biases<T, 2> : add_biases<T, 3>;
}

inline SpatialKernel kernel_for(DType dtype, int terms) {
  switch (dtype) {
    case DType::f32:
      return kernel_for_terms<float>(terms);
    case DType::f16:
      return kernel_for_terms<f16>(terms);
    default:
      return kernel_for_terms<bf16>(terms);
  }
}

}  // namespace
}  // namespace ds::DS_ISA

// Sums of the ranks' elements, for the code path DS_ISA; see for_each_isa.h. N additions an element
// against N reads and one or two writes: bound by memory, or by the caches.

namespace ds::DS_ISA {
namespace {

// Eight sums at once, so that the additions of one element, which wait for each other, do not wait
// alone.
inline constexpr int kAtOnce = 8;

template <class T, int kCount>
DS_TARGET DS_INLINE void sum_vectors(const ShmPieces& pieces, int count, std::int64_t at, T* out,
                                     T* copy) {
  Vec sums[kCount];
  const T* const first = static_cast<const T*>(pieces.in[0]) + at;
  for (int k = 0; k < kCount; ++k) sums[k] = load(first + k * kLanes);
  for (int r = 1; r < count; ++r) {
    const T* const in = static_cast<const T*>(pieces.in[r]) + at;
    for (int k = 0; k < kCount; ++k) sums[k] = sums[k] + load(in + k * kLanes);
  }
  for (int k = 0; k < kCount; ++k) store(out + at + k * kLanes, sums[k]);
  if (copy == nullptr) return;
  for (int k = 0; k < kCount; ++k) store(copy + at + k * kLanes, sums[k]);
}

template <class T>
DS_TARGET void sum_pieces(const ShmPieces& pieces, std::int64_t size) {
  T* const out = static_cast<T*>(pieces.out);
  T* const copy = static_cast<T*>(pieces.copy);
  std::int64_t i = 0;
  for (; i + kAtOnce * kLanes <= size; i += kAtOnce * kLanes) {
    sum_vectors<T, kAtOnce>(pieces, pieces.count, i, out, copy);
  }
  for (; i + kLanes <= size; i += kLanes) {
    sum_vectors<T, 1>(pieces, pieces.count, i, out, copy);
  }
  if (const std::int64_t rest = size - i; rest > 0) {
    Vec sum = load(static_cast<const T*>(pieces.in[0]) + i, rest);
    for (int r = 1; r < pieces.count; ++r) {
      sum = sum + load(static_cast<const T*>(pieces.in[r]) + i, rest);
    }
    store(out + i, sum, rest);
    if (copy != nullptr) store(copy + i, sum, rest);
  }
}

inline ShmReduce sum_of(CommType type) {
  switch (type) {
    case CommType::f32:
      return sum_pieces<float>;
    case CommType::f16:
      return sum_pieces<f16>;
    case CommType::bf16:
      return sum_pieces<bf16>;
    default:
      return nullptr;
  }
}

}  // namespace
}  // namespace ds::DS_ISA

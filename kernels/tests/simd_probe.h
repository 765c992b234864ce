// Every word of simd.h on one path, for arrays; compiled once per path by for_each_isa.h.

#include "simd_exp.h"

namespace ds::DS_ISA {
namespace {

// Loads In, stores Out: `size` elements, the last ones by the tail operations.
template <class In, class Out>
DS_TARGET void convert(const void* in, void* out, std::int64_t size) {
  const In* from = static_cast<const In*>(in);
  Out* to = static_cast<Out*>(out);
  std::int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) store(to + i, load(from + i));
  if (size > i) store(to + i, load(from + i, size - i), size - i);
}

// `size` is a multiple of two vectors.
template <class Out>
DS_TARGET void pairs(const float* in, void* out, std::int64_t size) {
  Out* to = static_cast<Out*>(out);
  for (std::int64_t i = 0; i < size; i += 2 * kLanes) {
    store_pair(to + i, load(in + i), load(in + i + kLanes));
  }
}

DS_TARGET inline void steps(const float* in, float* out, float step, std::int64_t size) {
  for (std::int64_t i = 0; i + kLanes <= size; i += kLanes) {
    store(out + i, signed_step(load(in + i), set1(step)));
  }
}

DS_TARGET inline void roots(const float* in, float* out, std::int64_t size) {
  for (std::int64_t i = 0; i + kLanes <= size; i += kLanes) {
    store(out + i, sqrt(max0(load(in + i))));
  }
}

DS_TARGET inline void extremes(const float* a, const float* b, float* most, float* least,
                               std::int64_t size) {
  for (std::int64_t i = 0; i + kLanes <= size; i += kLanes) {
    store(most + i, larger(load(a + i), load(b + i)));
    store(least + i, smaller(load(a + i), load(b + i)));
  }
}

DS_TARGET inline void exponentials(const float* in, float* out, std::int64_t size) {
  for (std::int64_t i = 0; i + kLanes <= size; i += kLanes) store(out + i, exp(load(in + i)));
}

inline const Words& words() {
  static const Words all = {{{convert<float, float>, convert<float, f16>, convert<float, bf16>},
                             {convert<f16, float>, convert<f16, f16>, convert<f16, bf16>},
                             {convert<bf16, float>, convert<bf16, f16>, convert<bf16, bf16>}},
                            {pairs<float>, pairs<f16>, pairs<bf16>},
                            steps,
                            roots,
                            extremes,
                            exponentials};
  return all;
}

}  // namespace
}  // namespace ds::DS_ISA

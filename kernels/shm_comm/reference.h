#pragma once

// What an all-reduce has to give, for one element, to the last bit. shm_comm.h states it: the terms
// in the order of ranks, f16 and bf16 in float and rounded once.

#include <type_traits>

#include "half.h"
#include "shm_comm.h"

namespace ds {

// The type that elements of type T are computed in, and the ways there and back.
template <class T>
struct ShmWide {
  using type = T;
  static T widen(T x) { return x; }
  static T narrow(T x) { return x; }
};
template <>
struct ShmWide<f16> {
  using type = float;
  static float widen(f16 x) { return to_float(x); }
  static f16 narrow(float x) {
    f16 out;
    from_float(x, out);
    return out;
  }
};
template <>
struct ShmWide<bf16> {
  using type = float;
  static float widen(bf16 x) { return to_float(x); }
  static bf16 narrow(float x) {
    bf16 out;
    from_float(x, out);
    return out;
  }
};

template <class W>
W shm_combine(CommReduction reduction, W a, W b) {
  if constexpr (std::is_integral_v<W>) {
    // Wrapping is defined for unsigned numbers only, and small ones become ints.
    using U = std::conditional_t<sizeof(W) < sizeof(unsigned), unsigned, std::make_unsigned_t<W>>;
    if (reduction == CommReduction::sum)
      return static_cast<W>(static_cast<U>(a) + static_cast<U>(b));
    if (reduction == CommReduction::product) {
      return static_cast<W>(static_cast<U>(a) * static_cast<U>(b));
    }
  } else {
    if (reduction == CommReduction::sum) return a + b;
    if (reduction == CommReduction::product) return a * b;
    if (a != a) return a;
    if (b != b) return b;
  }
  if (reduction == CommReduction::min) return b < a ? b : a;
  return a < b ? b : a;
}

}  // namespace ds

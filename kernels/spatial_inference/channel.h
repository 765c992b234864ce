#pragma once

#include <cstdint>

#include "ds_op.h"

namespace ds {

// i % channels without a 64-bit division, which on a GPU is a subroutine: a multiplication by
// 2^64/channels gives the quotient or one less.
struct Channels {
  std::uint64_t count;
  std::uint64_t reciprocal;  // ⌊2^64 / count⌋; for 1, 2^64 - 1.

  explicit Channels(std::uint64_t channels)
      : count(channels), reciprocal(channels == 1 ? ~0ull : ~0ull / channels) {
    // ⌊(2^64 - 1)/n⌋ is ⌊2^64/n⌋ unless n divides 2^64.
    if (channels > 1 && (channels & (channels - 1)) == 0) ++reciprocal;
  }

  DS_HOST_DEVICE std::uint64_t of(std::uint64_t i) const {
#ifdef __CUDA_ARCH__
    const std::uint64_t quotient = __umul64hi(i, reciprocal);
#else
    __extension__ using Wide = unsigned __int128;
    const auto quotient = static_cast<std::uint64_t>(static_cast<Wide>(i) * reciprocal >> 64);
#endif
    const std::uint64_t rest = i - quotient * count;
    return rest < count ? rest : rest - count;
  }
};

}  // namespace ds

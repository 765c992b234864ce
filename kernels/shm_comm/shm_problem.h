#pragma once

// Numbers for ranks, and what an all-reduce of them has to give: for the self-test and the tests.

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "half.h"
#include "reference.h"
#include "shm_comm.h"

namespace ds {

// Element `i` of rank `rank`: numbers of very different size, so that another order of additions
// gives other bits; any integers; now and then a zero, an infinity or a NaN.
template <class T>
T shm_element(int rank, std::int64_t i, std::uint64_t seed, bool special = true) {
  std::uint64_t z = seed * 0x9e3779b97f4a7c15u +
                    static_cast<std::uint64_t>(rank) * 0xd1342543de82ef95u +
                    static_cast<std::uint64_t>(i) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  z ^= z >> 31;
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(z);
  } else {
    using Wide = typename ShmWide<T>::type;
    if (special && z % 997 == 0) return ShmWide<T>::narrow(Wide(INFINITY) * (z & 1024 ? 1 : -1));
    if (special && z % 991 == 0) return ShmWide<T>::narrow(Wide(NAN));
    if (z % 13 == 0) return ShmWide<T>::narrow(Wide(0));
    const auto unit = static_cast<double>(z >> 11) * 0x1p-52 - 1.0;
    return ShmWide<T>::narrow(static_cast<Wide>(unit * (z & 7 ? 1.0 : 1000.0)));
  }
}

template <class T>
T shm_expected(int ranks, std::int64_t i, std::uint64_t seed, CommReduction reduction,
               bool special = true) {
  auto sum = ShmWide<T>::widen(shm_element<T>(0, i, seed, special));
  for (int r = 1; r < ranks; ++r) {
    sum = shm_combine(reduction, sum, ShmWide<T>::widen(shm_element<T>(r, i, seed, special)));
  }
  return ShmWide<T>::narrow(sum);
}

// To the last bit, but which NaN it is: that differs between instructions.
template <class T>
bool shm_same(T a, T b) {
  const auto x = ShmWide<T>::widen(a), y = ShmWide<T>::widen(b);
  if (x != x || y != y) return x != x && y != y;
  const auto bytes_of = [](const T& value) {
    std::array<unsigned char, sizeof value> bytes;
    std::memcpy(bytes.data(), &value, sizeof value);
    return bytes;
  };
  return bytes_of(a) == bytes_of(b);
}

// All-reduces `count` elements; the first wrong one, or nothing.
template <class T>
std::string shm_wrong_element(ShmComm& comm, std::int64_t count, CommType type, std::uint64_t seed,
                              CommReduction reduction = CommReduction::sum) {
  const int rank = shm_comm_rank(comm), ranks = shm_comm_size(comm);
  constexpr std::int64_t kGuard = 3;
  std::vector<T> data(static_cast<std::size_t>(count + kGuard));
  for (std::int64_t i = 0; i < count + kGuard; ++i) {
    data[static_cast<std::size_t>(i)] = shm_element<T>(rank, i, seed);
  }
  shm_comm_all_reduce(comm, data.data(), count, type, reduction);
  for (std::int64_t i = 0; i < count + kGuard; ++i) {
    const T got = data[static_cast<std::size_t>(i)];
    const T want =
        i < count ? shm_expected<T>(ranks, i, seed, reduction) : shm_element<T>(rank, i, seed);
    if (shm_same(got, want)) continue;
    return "rank " + std::to_string(rank) + " of " + std::to_string(ranks) + ": element " +
           std::to_string(i) + " of " + std::to_string(count) + " is " +
           std::to_string(static_cast<double>(ShmWide<T>::widen(got))) + ", should be " +
           std::to_string(static_cast<double>(ShmWide<T>::widen(want)));
  }
  return "";
}

}  // namespace ds

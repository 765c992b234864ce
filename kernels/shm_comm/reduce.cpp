#include "reduce.h"

#include <algorithm>
#include <stdexcept>

#include "cpu_isa.h"
#include "half.h"
#include "reference.h"

// From for_each_isa.h, so that ccl_comm, which includes this file, finds it too.
#define DS_KERNEL_FILE "../shm_comm/kernel.h"
#include "for_each_isa.h"

namespace ds {
namespace {

// All other types and reductions: in tiles, so that the inner loop is over elements.
template <class T, CommReduction kReduction>
void reduce_pieces(const ShmPieces& pieces, std::int64_t size) {
  using Wide = typename ShmWide<T>::type;
  constexpr std::int64_t kTile = 256;
  Wide tile[kTile];
  for (std::int64_t begin = 0; begin < size; begin += kTile) {
    const std::int64_t n = std::min(kTile, size - begin);
    const T* const first = static_cast<const T*>(pieces.in[0]) + begin;
    for (std::int64_t i = 0; i < n; ++i) tile[i] = ShmWide<T>::widen(first[i]);
    for (int r = 1; r < pieces.count; ++r) {
      const T* const in = static_cast<const T*>(pieces.in[r]) + begin;
      for (std::int64_t i = 0; i < n; ++i) {
        tile[i] = shm_combine<Wide>(kReduction, tile[i], ShmWide<T>::widen(in[i]));
      }
    }
    for (void* const to : {pieces.out, pieces.copy}) {
      if (to == nullptr) continue;
      T* const out = static_cast<T*>(to) + begin;
      for (std::int64_t i = 0; i < n; ++i) out[i] = ShmWide<T>::narrow(tile[i]);
    }
  }
}

template <class T>
ShmReduce plain(CommReduction reduction) {
  switch (reduction) {
    case CommReduction::sum:
      return reduce_pieces<T, CommReduction::sum>;
    case CommReduction::product:
      return reduce_pieces<T, CommReduction::product>;
    case CommReduction::min:
      return reduce_pieces<T, CommReduction::min>;
    case CommReduction::max:
      return reduce_pieces<T, CommReduction::max>;
  }
  return nullptr;
}

ShmReduce vector_sum(CommType type, CpuIsa isa) {
  return DS_ON_PATH(isa, sum_of(type));
}

}  // namespace

ShmReduce shm_reduce_for(CommType type, CommReduction reduction, CpuIsa isa) {
  if (reduction > CommReduction::max) throw std::invalid_argument("shm_comm: unknown reduction");
  if (reduction == CommReduction::sum) {
    if (const ShmReduce sum = vector_sum(type, isa); sum != nullptr) return sum;
  }
  switch (type) {
    case CommType::f32:
      return plain<float>(reduction);
    case CommType::f16:
      return plain<f16>(reduction);
    case CommType::bf16:
      return plain<bf16>(reduction);
    case CommType::f64:
      return plain<double>(reduction);
    case CommType::i8:
      return plain<std::int8_t>(reduction);
    case CommType::u8:
      return plain<std::uint8_t>(reduction);
    case CommType::i32:
      return plain<std::int32_t>(reduction);
    case CommType::i64:
      return plain<std::int64_t>(reduction);
  }
  throw std::invalid_argument("shm_comm: unknown type");
}

}  // namespace ds

// The op on the CPU, and the self-test of both devices. Bound by memory, but for the sort, which is
// bound by finding the bits of a bitmap one by one.

#include "random_ltd.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "cpu_isa.h"
#include "cpu_parallel.h"
#include "plan.h"
#include "self_test_cases.h"
#ifdef DS_WITH_CUDA
#include "launch.h"
#endif

namespace ds {
namespace {

// to[i] = from[indices[i]].
using TakeKernel = void (*)(const void* from, const std::int32_t* indices, std::int64_t size,
                            void* to);

}  // namespace
}  // namespace ds

#define DS_KERNEL_FILE "kernel.h"
#include "for_each_isa.h"

namespace ds {
namespace {

TakeKernel pick(CpuIsa isa, int element_size) {
  switch (isa) {
#if defined(__x86_64__)
    case CpuIsa::avx512_bf16:
    case CpuIsa::avx512:
      return avx512::take_kernel(element_size);
    case CpuIsa::avx2:
      return avx2::take_kernel(element_size);
#endif
    default:
      return scalar::take_kernel(element_size);
  }
}

// False: `bits`, of `tokens` zeros, cannot stand for the ids. Leaves them zero.
bool sort_by_bitmap(const std::int32_t* ids, std::int64_t size, std::int64_t tokens,
                    std::uint64_t* bits, std::int32_t* sorted) {
  std::int64_t good = 0;
  for (; good < size; ++good) {
    const std::int64_t id = ids[good];
    if (id < 0 || id >= tokens) break;
    std::uint64_t& word = bits[id / 64];
    const std::uint64_t bit = std::uint64_t{1} << (id % 64);
    if ((word & bit) != 0) break;
    word |= bit;
  }
  if (good < size) {
    for (std::int64_t i = 0; i < good; ++i) bits[ids[i] / 64] = 0;
    return false;
  }
  for (std::int64_t w = 0; w < (tokens + 63) / 64; ++w) {
    for (std::uint64_t word = bits[w]; word != 0; word &= word - 1) {
      *sorted++ = static_cast<std::int32_t>(w * 64 + __builtin_ctzll(word));
    }
    bits[w] = 0;
  }
  return true;
}

// Rows in parts of columns, so that of rows that are written twice the last one wins, whatever
// thread it is of.
struct Columns {
  std::int64_t parts;
  std::int64_t bytes;  // Of a part, but for the last.
};
Columns columns_of(const TokenRows& rows, int threads) {
  constexpr std::int64_t kFewest =
      512;  // Bytes: below that the rows' starts cost more than it saves.
  const std::int64_t wanted =
      rows.batch >= threads ? 1 : std::clamp<std::int64_t>(rows.row_bytes / kFewest, 1, threads);
  const std::int64_t bytes = ((rows.row_bytes + wanted - 1) / wanted + 63) / 64 * 64;
  return {(rows.row_bytes + bytes - 1) / bytes, bytes};
}

// Calls copy(all_row, kept_row, bytes), with null for a row of `all` that does not exist.
template <class Copy>
void each_token(const TokenRows& rows, const CpuOptions& cpu, const Copy& copy) {
  const Columns columns = columns_of(rows, threads_of(cpu));
  const auto columns_of_sequence = [&](std::int64_t b, std::int64_t first, std::int64_t bytes) {
    const std::int64_t all = b * rows.all_batch_stride + first;
    const std::int64_t kept = b * rows.kept_batch_stride + first;
    const std::int32_t* indices = rows.indices == nullptr ? nullptr : rows.indices + b * rows.kept;
    for (std::int64_t k = 0; k < rows.kept; ++k) {
      const std::int64_t token = indices == nullptr ? k : indices[k];
      const bool exists = token >= 0 && token < rows.tokens;
      copy(exists ? static_cast<std::uint8_t*>(rows.all) + all + token * rows.all_token_stride
                  : nullptr,
           static_cast<std::uint8_t*>(rows.kept_rows) + kept + k * rows.kept_token_stride,
           static_cast<std::size_t>(bytes));
    }
  };
  for_each_share(rows.batch * columns.parts, 1, 2 * rows.kept * columns.bytes, cpu,
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t i = begin; i < end; ++i) {
                     const std::int64_t first = i % columns.parts * columns.bytes;
                     columns_of_sequence(i / columns.parts, first,
                                         std::min(columns.bytes, rows.row_bytes - first));
                   }
                 });
}

void self_test(CpuIsa isa, Comparison& comparison) {
  random_ltd::test_all_functions<OnHost>(CpuOptions{1, isa}, comparison);
}

}  // namespace

void token_sort(const TokenSort& sort, const CpuOptions& cpu) {
  if (!random_ltd::check(sort)) return;
  // Of ids that are far apart, most of a bitmap would be empty.
  const bool dense = sort.tokens / 256 <= sort.size;
  const int threads = threads_of(cpu);
  const std::int64_t words = dense ? (sort.tokens + 63) / 64 : 0;
  std::vector<std::uint64_t> bits(
      static_cast<std::size_t>(words * std::min<std::int64_t>(threads, sort.rows)));
  for_each_share_of_thread(
      sort.rows, 1, 8 * sort.size, cpu, [&](int thread, std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          const std::int32_t* ids = sort.ids + row * sort.size;
          std::int32_t* sorted = sort.sorted + row * sort.size;
          if (dense &&
              sort_by_bitmap(ids, sort.size, sort.tokens, bits.data() + thread * words, sorted)) {
            continue;
          }
          if (ids != sorted) std::copy_n(ids, sort.size, sorted);
          std::sort(sorted, sorted + sort.size);
        }
      });
}

void token_gather(const TokenRows& rows, const CpuOptions& cpu) {
  if (!random_ltd::check(rows, "token_gather")) return;
  each_token(rows, cpu, [](const std::uint8_t* all, std::uint8_t* kept, std::size_t bytes) {
    if (all != nullptr) {
      std::memcpy(kept, all, bytes);
    } else {
      std::memset(kept, 0, bytes);
    }
  });
}

void token_scatter(const TokenRows& rows, const CpuOptions& cpu) {
  if (!random_ltd::check(rows, "token_scatter")) return;
  each_token(rows, cpu, [](std::uint8_t* all, const std::uint8_t* kept, std::size_t bytes) {
    if (all != nullptr) std::memcpy(all, kept, bytes);
  });
}

void mask_gather(const MaskGather& gather, const CpuOptions& cpu) {
  if (!random_ltd::check(gather)) return;
  const TakeKernel take = pick(resolve_isa(cpu.isa), gather.element_size);
  const std::int64_t size = gather.element_size, kept = gather.kept, tokens = gather.tokens;
  const auto exists = [&](std::int32_t token) { return token >= 0 && token < tokens; };
  const auto* mask = static_cast<const std::uint8_t*>(gather.mask);
  auto* out = static_cast<std::uint8_t*>(gather.out);
  const auto row = [&](std::int64_t r, bool all_exist) {
    const std::int32_t* indices = gather.indices + r / kept * kept;
    const std::int32_t token = gather.indices[r];
    std::uint8_t* to = out + r * kept * size;
    if (!exists(token)) {
      std::memset(to, 0, static_cast<std::size_t>(kept * size));
      return;
    }
    const std::int64_t sequence = r / kept % gather.batch;
    const std::uint8_t* from = mask + (sequence * tokens + token) * tokens * size;
    if (all_exist) return take(from, indices, kept, to);
    for (std::int64_t j = 0; j < kept; ++j, to += size) {
      const auto bytes = static_cast<std::size_t>(size);
      if (exists(indices[j])) {
        std::memcpy(to, from + indices[j] * size, bytes);
      } else {
        std::memset(to, 0, bytes);
      }
    }
  };
  for_each_share(gather.layers * gather.batch * kept, 1, 2 * kept * size, cpu,
                 [&](std::int64_t begin, std::int64_t end) {
                   while (begin < end) {  // The rows of one layer and sequence at a time.
                     const std::int64_t group = begin / kept;
                     const std::int64_t last = std::min(end, (group + 1) * kept);
                     const std::int32_t* indices = gather.indices + group * kept;
                     const bool all_exist = std::all_of(indices, indices + kept, exists);
                     for (; begin < last; ++begin) row(begin, all_exist);
                   }
                 });
}

}  // namespace ds

int ds_self_test_random_ltd(const char* device, char* detail, unsigned long detail_size) {
#ifdef DS_WITH_CUDA
  if (ds::names_cuda(device)) {
    return ds::random_ltd_cuda::self_test(device, detail, detail_size);
  }
#endif
  return ds::cpu_self_test(device, detail, detail_size, "6 functions", ds::self_test);
}

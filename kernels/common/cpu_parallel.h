#pragma once

// Work of the CPU ops that falls into equal units, over threads: each takes one contiguous share,
// so that it meets the same pages in every call.

#include <algorithm>
#include <cstdint>

#include "ds_types.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace ds {

// How many threads a call may use.
inline int threads_of(const CpuOptions& cpu) {
#ifdef _OPENMP
  return cpu.threads > 0 ? cpu.threads : omp_get_max_threads();
#else
  (void)cpu;
  return 1;
#endif
}

// Calls body(thread, first, last) for shares of [0, count), each a multiple of `unit` but for the
// last. `bytes` are what one of them reads and writes, which decides how many threads are worth
// waking: at most threads_of(cpu), nor more than units. The body must not throw.
template <class Body>
void for_each_share_of_thread(std::int64_t count, std::int64_t unit, std::int64_t bytes,
                              const CpuOptions& cpu, const Body& body) {
  // Below this many bytes a thread, waking it costs more than it saves.
  constexpr std::int64_t kBytesPerThread = 64 * 1024;
  const std::int64_t units = (count + unit - 1) / unit;
  const std::int64_t worth = count / std::max<std::int64_t>(kBytesPerThread / bytes, 1);
  const auto team =
      static_cast<int>(std::clamp<std::int64_t>(std::min(worth, units), 1, threads_of(cpu)));
#ifdef _OPENMP
  if (team > 1) {
#pragma omp parallel num_threads(team)
    {
      const std::int64_t part = omp_get_thread_num(), parts = omp_get_num_threads();
      const auto begin = [&](std::int64_t p) {
        return std::min(count, (units / parts * p + units % parts * p / parts) * unit);
      };
      if (begin(part) < begin(part + 1)) {
        body(static_cast<int>(part), begin(part), begin(part + 1));
      }
    }
    return;
  }
#else
  (void)team;
#endif
  if (count > 0) body(0, std::int64_t{0}, count);
}

// The same for a body(first, last) that does not care which thread it is on.
template <class Body>
void for_each_share(std::int64_t count, std::int64_t unit, std::int64_t bytes,
                    const CpuOptions& cpu, const Body& body) {
  for_each_share_of_thread(count, unit, bytes, cpu,
                           [&](int, std::int64_t first, std::int64_t last) { body(first, last); });
}

}  // namespace ds

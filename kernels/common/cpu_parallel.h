#pragma once

// Work of the CPU ops that falls into equal units, over threads: each takes one contiguous share,
// so that it meets the same pages in every call.

#include <algorithm>
#include <cstdint>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace ds {

// Calls body(first, last) for shares of [0, count), each a multiple of `unit` but for the last.
// `bytes` are what a unit of one reads and writes, which decides how many threads are worth waking:
// at most `threads`, or as many as OpenMP would use if that is 0. The body must not throw.
template <class Body>
void for_each_share(std::int64_t count, std::int64_t unit, std::int64_t bytes, int threads,
                    const Body& body) {
  const std::int64_t units = (count + unit - 1) / unit;
#ifdef _OPENMP
  // Below this many bytes a thread, waking it costs more than it saves.
  constexpr std::int64_t kBytesPerThread = 64 * 1024;
  const std::int64_t wanted = threads > 0 ? threads : omp_get_max_threads();
  const std::int64_t worth = count / std::max<std::int64_t>(kBytesPerThread / bytes, 1);
  const int team = static_cast<int>(std::clamp<std::int64_t>(std::min(worth, units), 1, wanted));
  if (team > 1) {
#pragma omp parallel num_threads(team)
    {
      const std::int64_t part = omp_get_thread_num(), parts = omp_get_num_threads();
      const auto begin = [&](std::int64_t p) {
        return std::min(count, (units / parts * p + units % parts * p / parts) * unit);
      };
      if (begin(part) < begin(part + 1)) body(begin(part), begin(part + 1));
    }
    return;
  }
#else
  (void)bytes;
  (void)threads;
  (void)units;
#endif
  if (count > 0) body(std::int64_t{0}, count);
}

}  // namespace ds

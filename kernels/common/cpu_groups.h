#pragma once

// How the CPU ops that treat a tensor in groups lay these over threads: a thread takes whole
// groups, which it finds again in its cache when it rounds what it has measured; of groups that are
// larger than that, all threads take a part each.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "cpu_parallel.h"
#include "half.h"

namespace ds {

// What was seen of values, as whole numbers in the order of the numbers (group_blocks.h). Parts are
// put together in any order with one result.
struct Seen {
  std::int32_t high = std::numeric_limits<std::int32_t>::min();
  std::int32_t low = std::numeric_limits<std::int32_t>::max();

  void add(const Seen& other) {
    high = std::max(high, other.high);
    low = std::min(low, other.low);
  }
  // The largest and the smallest; both NaN if there was one. -0 is below +0.
  float highest() const { return has_nan() ? NAN : value(high); }
  float lowest() const { return has_nan() ? NAN : value(low); }
  float largest_magnitude() const {
    return has_nan() ? NAN : std::max(std::fabs(value(high)), std::fabs(value(low)));
  }

 private:
  bool has_nan() const {
    constexpr std::int32_t kInfinity = 0x7f800000;
    return high > kInfinity || low < (kInfinity ^ -1);
  }
  static float value(std::int32_t key) {
    return float_from_bits(static_cast<std::uint32_t>(key ^ ((key >> 31) & 0x7fffffff)));
  }
};

// For each of `groups` groups of `size` elements: see(group, first, n, scratch) returns what is
// Seen of n elements from `first` on, and round(group, first, n, params, scratch) works on as many
// with what params_of(group, seen) gave. `scratch` is the group's: `size` floats if with_scratch,
// else null.
template <class See, class ParamsOf, class Round>
void for_each_group(std::int64_t groups, std::int64_t size, std::int64_t element_bytes,
                    bool with_scratch, const CpuOptions& cpu, const See& see,
                    const ParamsOf& params_of, const Round& round) {
  constexpr std::int64_t kUnit = 4096;          // Elements; parts of a group begin at a multiple.
  constexpr std::int64_t kInCache = 64 * 1024;  // Elements that a core's cache holds.
  const int threads = threads_of(cpu);
  if (size <= kUnit || (size <= kInCache && groups >= threads) ||
      (!with_scratch && groups >= 2 * threads)) {
    const std::int64_t team = std::min<std::int64_t>(threads, groups);
    std::vector<float> scratch(with_scratch ? static_cast<std::size_t>(team * size) : 0);
    for_each_share_of_thread(groups, 1, size * element_bytes, cpu,
                             [&](int thread, std::int64_t begin, std::int64_t end) {
                               float* mine =
                                   with_scratch ? scratch.data() + thread * size : nullptr;
                               for (std::int64_t g = begin; g < end; ++g) {
                                 round(g, std::int64_t{0}, size,
                                       params_of(g, see(g, std::int64_t{0}, size, mine)), mine);
                               }
                             });
    return;
  }
  std::vector<float> scratch(with_scratch ? static_cast<std::size_t>(size) : 0);
  std::vector<Seen> parts(static_cast<std::size_t>(threads));
  for (std::int64_t g = 0; g < groups; ++g) {
    std::fill(parts.begin(), parts.end(), Seen{});
    for_each_share_of_thread(
        size, kUnit, element_bytes, cpu, [&](int thread, std::int64_t begin, std::int64_t end) {
          parts[static_cast<std::size_t>(thread)] =
              see(g, begin, end - begin, with_scratch ? scratch.data() + begin : nullptr);
        });
    Seen seen;
    for (const Seen& part : parts) seen.add(part);
    const auto params = params_of(g, seen);
    for_each_share(size, kUnit, element_bytes, cpu, [&](std::int64_t begin, std::int64_t end) {
      round(g, begin, end - begin, params, with_scratch ? scratch.data() + begin : nullptr);
    });
  }
}

}  // namespace ds

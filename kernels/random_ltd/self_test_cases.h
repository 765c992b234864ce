#pragma once

// What the self-test computes, on any device.

#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "random_ltd.h"
#include "reference.h"
#include "self_test.h"

namespace ds::random_ltd {

template <class T>
std::vector<T> numbered(std::int64_t size) {
  std::vector<T> values(static_cast<std::size_t>(size));
  std::iota(values.begin(), values.end(), T{1});
  return values;
}

// Ids of `rows` rows, distinct in each, in no order.
inline std::vector<std::int32_t> some_ids(std::int64_t rows, std::int64_t size,
                                          std::int64_t tokens) {
  std::vector<std::int32_t> ids;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = 0; i < size; ++i) {
      // 7 has no divisor in common with the number of tokens below.
      ids.push_back(static_cast<std::int32_t>((i * 7 + row * 3) % tokens));
    }
  }
  return ids;
}

template <class T>
void compare(const char* what, const std::vector<T>& got, const std::vector<T>& want,
             Comparison& comparison) {
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (got[i] == want[i]) continue;
    comparison.fail(std::string(what) + "[" + std::to_string(i) + "] is " + std::to_string(got[i]) +
                    ", should be " + std::to_string(want[i]));
    return;
  }
}

// `Copied<T>` is a vector's copy where `options` compute: data() is there, host() brings it back.
template <template <class> class Copied, class Options>
void test_all_functions(const Options& options, Comparison& comparison) {
  constexpr std::int64_t kBatch = 3, kTokens = 1000, kKept = 400, kChannels = 24, kLayers = 2;
  const std::vector<std::int32_t> ids = some_ids(kLayers * kBatch, kKept, kTokens);
  std::vector<std::int32_t> sorted(ids.size());
  const Copied<std::int32_t> copied_ids(ids), copied_sorted(sorted);
  token_sort({copied_ids.data(), copied_sorted.data(), kLayers * kBatch, kKept, kTokens}, options);
  reference::token_sort({ids.data(), sorted.data(), kLayers * kBatch, kKept, kTokens});
  compare("token_sort", copied_sorted.host(), sorted, comparison);

  const std::vector<std::uint16_t> rows = numbered<std::uint16_t>(kBatch * kTokens * kChannels);
  for (const bool batch_first : {true, false}) {
    std::vector<std::uint16_t> all = rows;
    std::vector<std::uint16_t> kept(static_cast<std::size_t>(kBatch * kKept * kChannels));
    const Copied<std::uint16_t> copied_all(all), copied_kept(kept);
    constexpr std::int64_t kRow = kChannels * 2;
    TokenRows call{all.data(),
                   kept.data(),
                   sorted.data(),
                   kBatch,
                   kTokens,
                   kKept,
                   kRow,
                   batch_first ? kTokens * kRow : kRow,
                   batch_first ? kRow : kBatch * kRow,
                   batch_first ? kKept * kRow : kRow,
                   batch_first ? kRow : kBatch * kRow};
    TokenRows call_there = call;
    call_there.all = copied_all.data();
    call_there.kept_rows = copied_kept.data();
    call_there.indices = copied_sorted.data();
    token_gather(call_there, options);
    reference::token_gather(call);
    compare("token_gather", copied_kept.host(), kept, comparison);
    // Back to other places.
    call.indices = sorted.data() + kBatch * kKept;
    call_there.indices = copied_sorted.data() + kBatch * kKept;
    token_scatter(call_there, options);
    reference::token_scatter(call);
    compare("token_scatter", copied_all.host(), all, comparison);
  }

  const std::vector<std::uint16_t> mask = numbered<std::uint16_t>(kBatch * kTokens * kTokens);
  std::vector<std::uint16_t> masks(static_cast<std::size_t>(kLayers * kBatch * kKept * kKept));
  const Copied<std::uint16_t> copied_mask(mask), copied_masks(masks);
  mask_gather({copied_mask.data(), copied_sorted.data(), copied_masks.data(), kLayers, kBatch,
               kTokens, kKept, 2},
              options);
  reference::mask_gather(
      {mask.data(), sorted.data(), masks.data(), kLayers, kBatch, kTokens, kKept, 2});
  compare("mask_gather", copied_masks.host(), masks, comparison);
}

}  // namespace ds::random_ltd

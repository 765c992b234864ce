// random_ltd on a device, byte by byte against its reference.

#include "random_ltd.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "on_device.h"
#include "reference.h"

namespace ds {
namespace {

std::vector<std::int32_t> sample(std::int64_t rows, std::int64_t kept, std::int64_t tokens,
                                 bool sorted) {
  std::mt19937 generator(static_cast<std::uint32_t>(kept * 31 + tokens));
  std::vector<std::int32_t> all(static_cast<std::size_t>(tokens)), ids;
  std::iota(all.begin(), all.end(), 0);
  for (std::int64_t row = 0; row < rows; ++row) {
    std::shuffle(all.begin(), all.end(), generator);
    ids.insert(ids.end(), all.begin(), all.begin() + kept);
    if (sorted) std::sort(ids.end() - kept, ids.end());
  }
  return ids;
}

void expect_sorted(const std::vector<std::int32_t>& ids, std::int64_t rows, std::int64_t size,
                   std::int64_t tokens) {
  const OnDevice<std::int32_t> on_device(ids), sorted(ids.size());
  token_sort({on_device.data(), sorted.data(), rows, size, tokens}, CudaOptions{});
  std::vector<std::int32_t> want(ids.size());
  reference::token_sort({ids.data(), want.data(), rows, size, tokens});
  EXPECT_EQ(sorted.host(), want) << rows << " rows of " << size << " of " << tokens;
  if (tokens > kTokenSortInPlace) return;
  token_sort({on_device.data(), on_device.data(), rows, size, tokens}, CudaOptions{});
  EXPECT_EQ(on_device.host(), want)
      << "in place: " << rows << " rows of " << size << " of " << tokens;
}

TEST(RandomLtd, Sorts_rows_of_any_length) {
  NEEDS_A_DEVICE();
  for (const std::int64_t tokens : {1, 31, 32, 33, 512, 2048, 2049, 4096, 65536, 327680, 700001}) {
    for (const std::int64_t kept : {std::int64_t{1}, tokens / 2, tokens - 1, tokens}) {
      const std::int64_t rows = tokens > 10000 ? 3 : 50;
      expect_sorted(sample(rows, kept, tokens, false), rows, kept, tokens);
    }
  }
  expect_sorted({}, 0, 7, 8);
  expect_sorted({}, 7, 0, 8);
}

TEST(RandomLtd, Sorts_ids_that_are_no_sample_too) {
  NEEDS_A_DEVICE();
  expect_sorted({5, 5, 5, 1, 0, 1}, 2, 3, 8);
  expect_sorted({100, -3, 2, 2147483647, -2147483647 - 1, 8}, 1, 6, 8);
  expect_sorted({3, 1, 2}, 1, 3, 0);
  std::vector<std::int32_t> ids = sample(4, 3000, 4096, false);
  ids[5] = ids[6];
  ids[7000] = 4096;
  expect_sorted(ids, 4, 3000, 4096);
}

struct Layout {
  bool batch_first;
  std::int64_t batch, tokens, kept, row_bytes;
  std::size_t shift;  // Of both tensors, in bytes.
};

TokenRows rows_of(const Layout& l) {
  TokenRows rows{};
  rows.batch = l.batch;
  rows.tokens = l.tokens;
  rows.kept = l.kept;
  rows.row_bytes = l.row_bytes;
  rows.all_batch_stride = l.batch_first ? l.tokens * l.row_bytes : l.row_bytes;
  rows.all_token_stride = l.batch_first ? l.row_bytes : l.batch * l.row_bytes;
  rows.kept_batch_stride = l.batch_first ? l.kept * l.row_bytes : l.row_bytes;
  rows.kept_token_stride = l.batch_first ? l.row_bytes : l.batch * l.row_bytes;
  return rows;
}

void expect_rows(const Layout& l, const std::vector<std::int32_t>& indices) {
  SCOPED_TRACE(testing::Message() << l.batch << " × " << l.tokens << ", " << l.kept
                                  << " kept, rows "
                                  << "of " << l.row_bytes << " from " << l.shift
                                  << (l.batch_first ? ", batch first" : ", tokens first"));
  std::vector<std::uint8_t> all = random_bytes(l.batch * l.tokens * l.row_bytes, 1);
  std::vector<std::uint8_t> kept(static_cast<std::size_t>(l.batch * l.kept * l.row_bytes));
  const OnDevice<std::uint8_t> device_all(all, l.shift), device_kept(kept.size(), l.shift);
  const OnDevice<std::int32_t> device_indices(indices);
  TokenRows host = rows_of(l), device = host;
  host.all = all.data();
  host.kept_rows = kept.data();
  host.indices = indices.data();
  device.all = device_all.data();
  device.kept_rows = device_kept.data();
  device.indices = device_indices.data();
  token_gather(device, CudaOptions{});
  reference::token_gather(host);
  EXPECT_EQ(device_kept.host(), kept);

  kept = random_bytes(l.batch * l.kept * l.row_bytes, 2);
  const OnDevice<std::uint8_t> changed(kept, l.shift);
  host.kept_rows = kept.data();
  device.kept_rows = changed.data();
  token_scatter(device, CudaOptions{});
  reference::token_scatter(host);
  EXPECT_EQ(device_all.host(), all);
}

TEST(RandomLtd, Gathers_and_scatters_every_layout_size_and_offset) {
  NEEDS_A_DEVICE();
  for (const bool batch_first : {true, false}) {
    for (const std::int64_t row_bytes : {1, 2, 6, 32, 62, 64, 66, 2048, 9000}) {
      for (const std::size_t shift : {0, 2, 8}) {
        for (const std::int64_t tokens : {1, 33, 300}) {
          for (const std::int64_t kept : {std::int64_t{1}, (tokens + 1) / 2, tokens}) {
            expect_rows({batch_first, 3, tokens, kept, row_bytes, shift},
                        sample(3, kept, tokens, true));
          }
        }
      }
    }
  }
}

TEST(RandomLtd, Tokens_that_do_not_exist_are_zeros_and_are_never_written) {
  NEEDS_A_DEVICE();
  expect_rows({true, 2, 10, 3, 32, 0}, {-1, 3, 10, 0, 5, 2147483647});
  expect_rows({false, 1, 0, 2, 32, 0}, {0, 1});
}

TEST(RandomLtd, Beyond_32_bits_of_bytes) {
  NEEDS_A_DEVICE();
  // 3 sequences of 2,100 tokens of 1 MiB: 6.6 GB, of which some tokens of the last are checked.
  constexpr std::int64_t kRow = 1 << 20, kTokens = 2100, kBatch = 3;
  std::size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "while asking for free memory");
  if (free < std::size_t{8} << 30) GTEST_SKIP() << "the device has too little free memory";
  const DeviceMemory all(static_cast<std::size_t>(kBatch * kTokens * kRow));
  check_cuda(cudaMemset(all.data(), 1, all.size()), "while filling");
  auto* last = static_cast<char*>(all.data()) + (kBatch * kTokens - 1) * kRow;
  check_cuda(cudaMemset(last, 7, kRow), "while filling");
  const OnDevice<std::int32_t> indices(std::vector<std::int32_t>{0, 1, 2099});
  const OnDevice<std::uint8_t> kept(static_cast<std::size_t>(kBatch * kRow));
  token_gather({all.data(), kept.data(), indices.data(), kBatch, kTokens, 1, kRow, kTokens * kRow,
                kRow, kRow, kRow},
               CudaOptions{});
  std::vector<std::uint8_t> want(static_cast<std::size_t>(kBatch * kRow), 1);
  std::fill(want.end() - kRow, want.end(), 7);
  EXPECT_EQ(kept.host(), want);
}

template <class T>
void expect_masks(std::int64_t layers, std::int64_t batch, std::int64_t tokens, std::int64_t kept,
                  std::size_t shift) {
  const std::vector<std::uint8_t> bytes =
      random_bytes(batch * tokens * tokens * static_cast<std::int64_t>(sizeof(T)),
                   static_cast<std::uint32_t>(kept));
  std::vector<T> mask(bytes.size() / sizeof(T));
  std::memcpy(mask.data(), bytes.data(), bytes.size());
  std::vector<std::int32_t> indices = sample(layers * batch, kept, tokens, true);
  if (indices.size() > 3) indices[3] = static_cast<std::int32_t>(tokens);
  std::vector<T> want(static_cast<std::size_t>(layers * batch * kept * kept));
  const OnDevice<T> device_mask(mask, shift), out(want.size(), shift);
  const OnDevice<std::int32_t> device_indices(indices);
  mask_gather({device_mask.data(), device_indices.data(), out.data(), layers, batch, tokens, kept,
               sizeof(T)},
              CudaOptions{});
  reference::mask_gather(
      {mask.data(), indices.data(), want.data(), layers, batch, tokens, kept, sizeof(T)});
  EXPECT_EQ(out.host(), want) << layers << " × " << batch << " × " << kept << " of " << tokens
                              << ", elements of " << sizeof(T) << " from " << shift;
}

TEST(RandomLtd, Masks_follow_the_indices_of_their_layer) {
  NEEDS_A_DEVICE();
  for (const std::int64_t tokens : {1, 32, 97}) {
    for (const std::int64_t kept : {std::int64_t{1}, (tokens + 1) / 2, tokens}) {
      for (const std::size_t shift : {0, 1}) {
        expect_masks<std::uint8_t>(3, 2, tokens, kept, shift);
        expect_masks<std::uint16_t>(3, 2, tokens, kept, shift);
        expect_masks<std::uint32_t>(3, 2, tokens, kept, shift);
        expect_masks<std::uint64_t>(3, 2, tokens, kept, shift);
      }
    }
  }
}

TEST(RandomLtd, Self_test_is_right) {
  char detail[200];
  int count = 0;
  const bool have = cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
  const int status = ds_self_test_random_ltd("cuda", detail, sizeof detail);
  EXPECT_EQ(status, have ? DS_SELF_TEST_OK : DS_SELF_TEST_SKIPPED) << detail;
}

}  // namespace
}  // namespace ds

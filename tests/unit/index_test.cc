#include "orchestrator/distribute/index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dsi::distribute {
namespace {

using testing::HasSubstr;

ChunkIndex some_index() {
  ChunkIndex index;
  index.chunk_size = 1000;
  index.stripes = 4;
  index.objects = {{std::string(64, 'a'), "", 5000, 2500},
                   {std::string(64, 'b'), std::string(64, 'c'), 70, 10}};
  for (char c : {'0', '1', '2'}) index.hashes.push_back(hash_of(std::string(1, c)));
  return index;
}

TEST(ChunkIndex, Comes_back_as_it_was) {
  auto read = decode_index(encode(some_index()));
  ASSERT_TRUE(read) << read.error().what;
  EXPECT_EQ(*read, some_index());
}

TEST(ChunkIndex, Knows_the_last_chunk_and_the_stripes) {
  ChunkIndex index = some_index();
  EXPECT_EQ(index.stream_size(), 2510u);
  EXPECT_EQ(index.size_of(0), 1000u);
  EXPECT_EQ(index.size_of(2), 510u);
  EXPECT_EQ(index.chunks_in(0), 1u);
  EXPECT_EQ(index.chunks_in(2), 1u);
  EXPECT_EQ(index.chunks_in(3), 0u);
  index.stripes = 2;
  EXPECT_EQ(index.chunks_in(0), 2u);
  EXPECT_EQ(index.chunks_in(1), 1u);
}

TEST(ChunkIndex, Is_refused_at_every_length_but_its_own) {
  std::string bytes = encode(some_index());
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    EXPECT_FALSE(decode_index(std::string_view(bytes).substr(0, n))) << n;
  }
  EXPECT_FALSE(decode_index(bytes + std::string(32, 'x')));
}

TEST(ChunkIndex, With_numbers_that_cannot_be_is_refused) {
  for (auto change : std::vector<void (*)(ChunkIndex&)>{
           [](ChunkIndex& i) { i.chunk_size = 0; },
           [](ChunkIndex& i) { i.chunk_size = kMaxChunkSize + 1; },
           [](ChunkIndex& i) { i.stripes = 0; }, [](ChunkIndex& i) { i.stripes = kMaxStripes + 1; },
           [](ChunkIndex& i) { i.objects[0].wire_size = ~0ull; },
           [](ChunkIndex& i) { i.objects[0].size = ~0ull; },
           [](ChunkIndex& i) { i.hashes.pop_back(); }}) {
    ChunkIndex index = some_index();
    change(index);
    auto read = decode_index(encode(index));
    ASSERT_FALSE(read);
    EXPECT_THAT(read.error().what, HasSubstr("index"));
  }
}

TEST(ChunkIndex, An_empty_stream_has_no_chunk) {
  ChunkIndex index;
  index.chunk_size = 16;
  auto read = decode_index(encode(index));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->chunks(), 0u);
}

TEST(ChunkSize, Grows_with_the_stream_and_stays_in_its_bounds) {
  EXPECT_EQ(choose_chunk_size(0), 16u << 10);
  EXPECT_EQ(choose_chunk_size(16u << 20), 32u << 10);
  EXPECT_EQ(choose_chunk_size(32u << 20), 64u << 10);
  EXPECT_EQ(choose_chunk_size(1ull << 40), kMaxChunkSize);
}

TEST(Hash, Is_read_back_from_its_digits) {
  Hash hash = hash_of("abc");
  EXPECT_EQ(to_hex(hash), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hash_from_hex(to_hex(hash)).value(), hash);
  EXPECT_FALSE(hash_from_hex("ba78"));
  EXPECT_FALSE(hash_from_hex(std::string(64, 'A')));
}

}  // namespace
}  // namespace dsi::distribute

#pragma once

// What a swarm exchanges, and how every piece of it is known to be right.
//
// The files that nodes lack go over the wire as objects: each file compressed, or as a patch to an
// older version of it. Written one after the other the objects are the swarm's stream. It is cut
// into chunks of one size (the last may be shorter), wherever that falls. Chunk i belongs to stripe
// i % stripes; a stripe is what a node follows at one parent.
//
// The index holds the objects and the SHA-256 of every chunk. A node gets the SHA-256 of the
// encoded index over SSH and the index itself from whoever feeds it, so that what the head sends to
// a node does not grow with the payload; and believes no byte of a chunk before its hash fits.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/base/result.h"

namespace dsi::distribute {

// 32 bytes of SHA-256.
using Hash = std::array<std::uint8_t, 32>;

Hash hash_of(std::string_view bytes);
std::string to_hex(const Hash& hash);
Result<Hash> hash_from_hex(std::string_view digits);

struct WireObject {
  std::string digest;           // SHA-256 of the file, in hexadecimal digits.
  std::string base;             // Of the file that this is a patch to; empty: the whole file.
  std::uint64_t size = 0;       // Of the file, in bytes.
  std::uint64_t wire_size = 0;  // Of the zstd stream that gives it.
  friend bool operator==(const WireObject&, const WireObject&) = default;
};

inline constexpr std::uint32_t kMaxChunkSize = 192u << 10;  // With its number it fits in a frame.
inline constexpr std::uint32_t kMaxStripes = 64;
inline constexpr std::size_t kMaxIndexSize = 32u << 20;

struct ChunkIndex {
  std::uint32_t chunk_size = 0;  // Bytes of every chunk but the last.
  std::uint32_t stripes = 1;
  std::vector<WireObject> objects;
  std::vector<Hash> hashes;  // Of chunk 0, 1, ...

  std::uint64_t stream_size() const;
  std::uint32_t chunks() const { return static_cast<std::uint32_t>(hashes.size()); }
  // Bytes of chunk `number`.
  std::uint32_t size_of(std::uint32_t number) const;
  // How many chunks stripe `stripe` has.
  std::uint32_t chunks_in(std::uint32_t stripe) const;

  friend bool operator==(const ChunkIndex&, const ChunkIndex&) = default;
};

// The chunk size for a stream: small enough that a pipeline through many nodes fills in a small
// part of the whole time, large enough that headers and system calls do not count.
std::uint32_t choose_chunk_size(std::uint64_t stream_size);

// The same index gives the same bytes.
std::string encode(const ChunkIndex& index);
// The bytes may come from anybody: nothing in them is believed before it is checked, and what is
// returned is consistent in itself (the number of hashes fits the sizes, digests are digests).
Result<ChunkIndex> decode_index(std::string_view bytes);

}  // namespace dsi::distribute

// OpenSSL 3 calls the low-level interface deprecated; base/sha256.h says why it is used.
#define OPENSSL_SUPPRESS_DEPRECATED

#include "orchestrator/distribute/index.h"

#include <openssl/sha.h>

#include <algorithm>

namespace dsi::distribute {

namespace {

constexpr std::string_view kMagic = "DSINDEX1";

void put(std::string& out, std::uint64_t value, int bytes) {
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) {
    out += static_cast<char>((value >> shift) & 0xff);
  }
}

void put_hash(std::string& out, const Hash& hash) {
  out.append(reinterpret_cast<const char*>(hash.data()), hash.size());
}

// Takes numbers and hashes from the front; once there is too little, ok() is false for good.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : left_(bytes) {}

  std::string_view take(std::size_t n) {
    if (left_.size() < n) {
      ok_ = false;
      return {};
    }
    std::string_view part = left_.substr(0, n);
    left_.remove_prefix(n);
    return part;
  }
  std::uint64_t number(std::size_t bytes) {
    std::uint64_t value = 0;
    for (char c : take(bytes)) value = value << 8 | static_cast<unsigned char>(c);
    return value;
  }
  Hash hash() {
    Hash hash{};
    std::string_view part = take(hash.size());
    std::copy(part.begin(), part.end(), reinterpret_cast<char*>(hash.data()));
    return hash;
  }
  std::size_t left() const { return left_.size(); }
  bool ok() const { return ok_; }

 private:
  std::string_view left_;
  bool ok_ = true;
};

}  // namespace

Hash hash_of(std::string_view bytes) {
  Hash hash{};
  // The low-level interface, for the reason that base/sha256.h gives.
  SHA256_CTX context;
  SHA256_Init(&context);
  SHA256_Update(&context, bytes.data(), bytes.size());
  SHA256_Final(hash.data(), &context);
  return hash;
}

std::string to_hex(const Hash& hash) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (std::uint8_t byte : hash) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

Result<Hash> hash_from_hex(std::string_view digits) {
  Hash hash{};
  auto value = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
  };
  if (digits.size() != 2 * hash.size()) return fail("\"{}\" is no SHA-256", digits);
  for (std::size_t i = 0; i < hash.size(); ++i) {
    int high = value(digits[2 * i]);
    int low = value(digits[2 * i + 1]);
    if (high < 0 || low < 0) return fail("\"{}\" is no SHA-256", digits);
    hash[i] = static_cast<std::uint8_t>(high << 4 | low);
  }
  return hash;
}

std::uint64_t ChunkIndex::stream_size() const {
  std::uint64_t size = 0;
  for (const WireObject& object : objects) size += object.wire_size;
  return size;
}

std::uint32_t ChunkIndex::size_of(std::uint32_t number) const {
  std::uint64_t begin = static_cast<std::uint64_t>(number) * chunk_size;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(chunk_size, stream_size() - begin));
}

std::uint32_t ChunkIndex::chunks_in(std::uint32_t stripe) const {
  return (chunks() + stripes - 1 - stripe) / stripes;
}

std::uint32_t choose_chunk_size(std::uint64_t stream_size) {
  constexpr std::uint64_t kWanted = 512;
  constexpr std::uint64_t kSmallest = 16u << 10;
  std::uint64_t size = kSmallest;
  while (size < kMaxChunkSize && stream_size / size > kWanted) size *= 2;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(size, kMaxChunkSize));
}

std::string encode(const ChunkIndex& index) {
  std::string out(kMagic);
  put(out, index.chunk_size, 4);
  put(out, index.stripes, 4);
  put(out, index.objects.size(), 4);
  for (const WireObject& object : index.objects) {
    // Digests are made by us: a malformed one is a bug and gives an index that decode_index
    // refuses.
    put_hash(out, hash_from_hex(object.digest).value_or(Hash{}));
    put(out, object.base.empty() ? 0 : 1, 1);
    if (!object.base.empty()) put_hash(out, hash_from_hex(object.base).value_or(Hash{}));
    put(out, object.size, 8);
    put(out, object.wire_size, 8);
  }
  for (const Hash& hash : index.hashes) put_hash(out, hash);
  return out;
}

Result<ChunkIndex> decode_index(std::string_view bytes) {
  if (bytes.size() > kMaxIndexSize || bytes.substr(0, kMagic.size()) != kMagic) {
    return fail("this is no index of a swarm");
  }
  Reader reader(bytes.substr(kMagic.size()));
  ChunkIndex index;
  index.chunk_size = static_cast<std::uint32_t>(reader.number(4));
  index.stripes = static_cast<std::uint32_t>(reader.number(4));
  std::uint64_t objects = reader.number(4);
  if (!reader.ok() || index.chunk_size == 0 || index.chunk_size > kMaxChunkSize ||
      index.stripes == 0 || index.stripes > kMaxStripes) {
    return fail("the index of the swarm has impossible numbers");
  }
  std::uint64_t stream = 0;
  for (std::uint64_t i = 0; i < objects && reader.ok(); ++i) {
    WireObject object;
    object.digest = to_hex(reader.hash());
    if (reader.number(1) != 0) object.base = to_hex(reader.hash());
    object.size = reader.number(8);
    object.wire_size = reader.number(8);
    // The sum of what follows must stay below 2^63, however large each is.
    if (object.wire_size > (1ull << 40) || object.size > (1ull << 40)) {
      return fail("the index of the swarm has impossible numbers");
    }
    stream += object.wire_size;
    index.objects.push_back(std::move(object));
  }
  std::uint64_t chunks = stream / index.chunk_size + (stream % index.chunk_size != 0 ? 1 : 0);
  if (!reader.ok() || reader.left() % 32 != 0 || reader.left() / 32 != chunks) {
    return fail("the index of the swarm is cut off");
  }
  index.hashes.reserve(chunks);
  for (std::uint64_t i = 0; i < chunks; ++i) index.hashes.push_back(reader.hash());
  return index;
}

}  // namespace dsi::distribute

#include "orchestrator/loader/sha256.h"

static const uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t x, unsigned by) {
  return x >> by | x << (32 - by);
}

static void add_block(uint32_t state[8], const uint8_t* block) {
  uint32_t w[64];
  for (int i = 0; i < 16; ++i) {
    w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
           (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
  }
  for (int i = 16; i < 64; ++i) {
    uint32_t a = w[i - 15];
    uint32_t b = w[i - 2];
    w[i] = w[i - 16] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) + w[i - 7] +
           (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
  }
  uint32_t s[8];
  for (int i = 0; i < 8; ++i) s[i] = state[i];
  for (int i = 0; i < 64; ++i) {
    uint32_t one = s[7] + (rotate(s[4], 6) ^ rotate(s[4], 11) ^ rotate(s[4], 25)) +
                   ((s[4] & s[5]) ^ (~s[4] & s[6])) + kRound[i] + w[i];
    uint32_t two = (rotate(s[0], 2) ^ rotate(s[0], 13) ^ rotate(s[0], 22)) +
                   ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
    for (int k = 7; k > 0; --k) s[k] = s[k - 1];
    s[4] += one;
    s[0] = one + two;
  }
  for (int i = 0; i < 8; ++i) state[i] += s[i];
}

void loader_sha256_start(struct LoaderSha256* sha) {
  static const uint32_t kStart[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                     0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  for (int i = 0; i < 8; ++i) sha->state[i] = kStart[i];
  sha->size = 0;
}

void loader_sha256_add(struct LoaderSha256* sha, const void* data, size_t size) {
  const uint8_t* bytes = data;
  for (size_t i = 0; i < size; ++i) {
    sha->block[sha->size++ % sizeof sha->block] = bytes[i];
    if (sha->size % sizeof sha->block == 0) add_block(sha->state, sha->block);
  }
}

void loader_sha256_end(struct LoaderSha256* sha, uint8_t digest[kSha256Size]) {
  uint64_t bits = sha->size * 8;
  uint8_t byte = 0x80;
  do {
    loader_sha256_add(sha, &byte, 1);
    byte = 0;
  } while (sha->size % sizeof sha->block != sizeof sha->block - 8);
  for (int i = 0; i < 8; ++i) {
    byte = (uint8_t)(bits >> (56 - 8 * i));
    loader_sha256_add(sha, &byte, 1);
  }
  for (int i = 0; i < kSha256Size; ++i) {
    digest[i] = (uint8_t)(sha->state[i / 4] >> (24 - 8 * (i % 4)));
  }
}

void loader_hmac(const uint8_t key[kSha256Size], const void* data, size_t size,
                 uint8_t proof[kSha256Size]) {
  struct LoaderSha256 sha;
  uint8_t inner[kSha256Size];
  uint8_t pad[sizeof sha.block];
  for (size_t i = 0; i < sizeof pad; ++i) pad[i] = (uint8_t)((i < kSha256Size ? key[i] : 0) ^ 0x36);
  loader_sha256_start(&sha);
  loader_sha256_add(&sha, pad, sizeof pad);
  loader_sha256_add(&sha, data, size);
  loader_sha256_end(&sha, inner);
  for (size_t i = 0; i < sizeof pad; ++i) pad[i] ^= 0x36 ^ 0x5c;
  loader_sha256_start(&sha);
  loader_sha256_add(&sha, pad, sizeof pad);
  loader_sha256_add(&sha, inner, sizeof inner);
  loader_sha256_end(&sha, proof);
}

#pragma once

// SHA-256 (FIPS 180-4) and HMAC (RFC 2104) over it, for a program without a library. The agent uses
// the HMAC too, so that both ends of a proof come from one place.

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { kSha256Size = 32 };

struct LoaderSha256 {
  uint32_t state[8];
  uint64_t size;
  uint8_t block[64];
};

void loader_sha256_start(struct LoaderSha256* sha);
void loader_sha256_add(struct LoaderSha256* sha, const void* data, size_t size);
void loader_sha256_end(struct LoaderSha256* sha, uint8_t digest[kSha256Size]);

// Keys of 32 bytes only.
void loader_hmac(const uint8_t key[kSha256Size], const void* data, size_t size,
                 uint8_t proof[kSha256Size]);

#ifdef __cplusplus
}
#endif

#pragma once

// Fetches the agent from a node that has it.
//
//   loader                              node
//   "DSL1"                            →
//                                     ←   32 random bytes, the nonce
//   HMAC-SHA256(key, "DSL1" nonce digest), digest  →
//                                     ←   length (4 bytes, big-endian), the agent as .lzma
//
// The node hangs up where the proof is not right, which needs the key of this run; the loader
// checks what it got against a digest that came over SSH. So neither has to trust the other.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "orchestrator/loader/failure.h"

enum { kMaxAddresses = 8 };

struct peer {
  const char* addresses[kMaxAddresses];  // In numbers; the likeliest first.
  unsigned address_count;
  uint16_t port;
  uint8_t key[32];
  int64_t connect_ms;  // For all addresses together.
  int64_t stall_ms;    // Without a byte.
  int64_t total_ms;
};

// Exactly `size` bytes into `to`.
bool fetch_from_peer(const struct peer* peer, const uint8_t digest[32], uint8_t* to, size_t size,
                     struct failure* failure);

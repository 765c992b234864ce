#pragma once

// The folder on this node into which the agent goes.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "orchestrator/loader/failure.h"

struct store {
  int folder;
  const char* path;
  const char* digest;  // Of the agent, 64 hexadecimal digits.
  const char* nonce;   // Makes the names of unfinished files this loader's own.
};

bool store_open(struct store* store, struct failure* failure);

// True if <digest>.x is there, whole and may be executed: hosts may share a prefix, and another one
// may have been quicker.
bool store_has_agent(const struct store* store, const uint8_t digest[32], size_t size);

// Puts `bytes` at <digest><suffix>, whole or not at all, also if the power fails. A whole agent
// that is there already stays: on a network file system somebody may be running it.
bool store_put_agent(const struct store* store, const uint8_t digest[32], const uint8_t* bytes,
                     size_t size, struct failure* failure);
bool store_put_compressed(const struct store* store, const uint8_t* bytes, size_t size,
                          struct failure* failure);

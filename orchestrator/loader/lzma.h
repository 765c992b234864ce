#pragma once

// Decoder for the .lzma format ("alone"), which `xz --format=lzma` writes: a byte of properties,
// the dictionary's size (4 bytes), the size of the data (8 bytes, all ones: an end marker says it),
// and the range coder's bytes. The data is decoded as a whole, so the output is the window and no
// other memory is needed but the state.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
  kLzmaStates = 12,
  kLzmaPositions = 16,        // pb <= 4
  kLzmaLiteralContexts = 16,  // lc + lp <= 4, the limit of xz
};

struct lzma_length {
  uint16_t choice[2];
  uint16_t low[kLzmaPositions][8];
  uint16_t middle[kLzmaPositions][8];
  uint16_t high[256];
};

// Probabilities, nothing else: they all start at the same value.
struct lzma_model {
  uint16_t is_match[kLzmaStates][kLzmaPositions];
  uint16_t is_rep[kLzmaStates];
  uint16_t is_rep0[kLzmaStates];
  uint16_t is_rep1[kLzmaStates];
  uint16_t is_rep2[kLzmaStates];
  uint16_t is_rep0_long[kLzmaStates][kLzmaPositions];
  uint16_t slot[4][64];
  uint16_t middle_distance[115];
  uint16_t align[16];
  struct lzma_length match_length;
  struct lzma_length rep_length;
  uint16_t literal[kLzmaLiteralContexts][0x300];
};

// True if `in` is one whole stream, used up to its last byte, of exactly out_size bytes. Whatever
// `in` holds, nothing outside in[0, in_size) is read and nothing outside out[0, out_size) written.
bool lzma_decode(struct lzma_model* model, const uint8_t* in, size_t in_size, uint8_t* out,
                 size_t out_size);

#ifdef __cplusplus
}
#endif

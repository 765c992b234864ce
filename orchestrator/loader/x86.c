#include "orchestrator/loader/x86.h"

#include <stdbool.h>

// The filter cannot tell code from data. E8 (call) and E9 (jump) are opcodes to it if the distance
// after them is less than 16 MiB either way, so that its highest byte is 00 or FF. Opcodes shortly
// before that were left alone make it wary, for what it writes could look like one of theirs to us;
// what it does then is a convention of the format (xz's x86.c).
enum {
  kInstruction = 5,
  // One bit for each of the last bytes; bit 0 is this one.
  kOpcodes = 0x0f,  // It was an opcode, left alone.
  kTaken = 0xf0,    // And its distance was small enough.
  kOldest = 0x88,   // Forgotten with the next byte.
};

static bool is_small(uint32_t highest) {
  return (highest & 0xff) == 0x00 || (highest & 0xff) == 0xff;
}

static uint32_t distance_of(uint32_t address, uint32_t end, unsigned opcodes) {
  for (;;) {
    const uint32_t distance = address - end;
    if (opcodes == 0) return distance;
    // The byte of ours that is the highest of theirs.
    const unsigned shift = opcodes == 1 << 1 ? 16 : opcodes == 1 << 2 ? 8 : 0;
    if (!is_small(distance >> shift)) return distance;
    address = distance ^ ((1u << (shift + 8)) - 1);
  }
}

void x86_restore(uint8_t* code, size_t size) {
  unsigned before = 0;
  for (size_t at = 0; at + kInstruction <= size; ++at) {
    before = (before & ~(unsigned)kOldest) << 1;
    if ((code[at] & 0xfe) != 0xe8) continue;
    uint8_t* word = code + at + 1;
    const unsigned opcodes = before & kOpcodes;
    // At most one of the last bytes, and that one not taken.
    if (is_small(word[3]) && (before & kTaken) == 0 && (opcodes & (opcodes - 1)) == 0) {
      const uint32_t address =
          word[0] | (uint32_t)word[1] << 8 | (uint32_t)word[2] << 16 | (uint32_t)word[3] << 24;
      const uint32_t distance = distance_of(address, (uint32_t)(at + kInstruction), opcodes);
      for (int i = 0; i < 3; ++i) word[i] = (uint8_t)(distance >> 8 * i);
      word[3] = (distance & 1u << 24) != 0 ? 0xff : 0x00;
      at += kInstruction - 1;
      before = 0;
    } else {
      before |= is_small(word[3]) ? 0x11 : 0x01;
    }
  }
}

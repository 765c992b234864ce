#include "orchestrator/loader/lzma.h"

enum {
  kHeaderSize = 13,
  kProbabilityBits = 11,
  kHalf = 1 << (kProbabilityBits - 1),
  kMoveBits = 5,
  kMinMatch = 2,
  kFirstModelSlot = 4,    // Below it the slot is the distance.
  kFirstDirectSlot = 14,  // From it on only the lowest bits have probabilities.
  kAlignBits = 4,
  kFirstRepState = 7,  // States below it: the last thing was a literal.
};

struct range_decoder {
  const uint8_t* at;
  const uint8_t* end;
  uint32_t range;
  uint32_t code;
  bool starved;  // More bytes were wanted than there are; what was decoded since means nothing.
};

static uint32_t next_byte(struct range_decoder* rc) {
  if (rc->at == rc->end) {
    rc->starved = true;
    return 0;
  }
  return *rc->at++;
}

static void normalize(struct range_decoder* rc) {
  if (rc->range >= 1u << 24) return;
  rc->range <<= 8;
  rc->code = rc->code << 8 | next_byte(rc);
}

static unsigned decode_bit(struct range_decoder* rc, uint16_t* probability) {
  normalize(rc);
  uint32_t p = *probability;
  uint32_t bound = (rc->range >> kProbabilityBits) * p;
  if (rc->code < bound) {
    rc->range = bound;
    *probability = (uint16_t)(p + (((1u << kProbabilityBits) - p) >> kMoveBits));
    return 0;
  }
  rc->range -= bound;
  rc->code -= bound;
  *probability = (uint16_t)(p - (p >> kMoveBits));
  return 1;
}

// Bits without a probability, the highest first.
static uint32_t decode_direct(struct range_decoder* rc, unsigned bits) {
  uint32_t value = 0;
  while (bits-- > 0) {
    normalize(rc);
    rc->range >>= 1;
    uint32_t bit = rc->code >= rc->range;
    if (bit) rc->code -= rc->range;
    value = value << 1 | bit;
  }
  return value;
}

// A tree of 2^bits leaves; tree[0] is not used.
static unsigned decode_tree(struct range_decoder* rc, uint16_t* tree, unsigned bits) {
  unsigned node = 1;
  for (unsigned i = 0; i < bits; ++i) node = node << 1 | decode_bit(rc, &tree[node]);
  return node - (1u << bits);
}

// The lowest bit first.
static uint32_t decode_reverse(struct range_decoder* rc, uint16_t* tree, unsigned bits) {
  unsigned node = 1;
  uint32_t value = 0;
  for (unsigned i = 0; i < bits; ++i) {
    unsigned bit = decode_bit(rc, &tree[node]);
    node = node << 1 | bit;
    value |= (uint32_t)bit << i;
  }
  return value;
}

static unsigned decode_length(struct range_decoder* rc, struct lzma_length* length,
                              unsigned position) {
  if (!decode_bit(rc, &length->choice[0])) return decode_tree(rc, length->low[position], 3);
  if (!decode_bit(rc, &length->choice[1])) return 8 + decode_tree(rc, length->middle[position], 3);
  return 16 + decode_tree(rc, length->high, 8);
}

// The distance less one; all ones is the end marker.
static uint32_t decode_distance(struct range_decoder* rc, struct lzma_model* model,
                                unsigned length) {
  unsigned slot = decode_tree(rc, model->slot[length < 3 ? length : 3], 6);
  if (slot < kFirstModelSlot) return slot;
  unsigned bits = (slot >> 1) - 1;
  uint32_t high = (2 | (slot & 1)) << bits;
  if (slot < kFirstDirectSlot) {
    return high + decode_reverse(rc, &model->middle_distance[high - slot], bits);
  }
  high += decode_direct(rc, bits - kAlignBits) << kAlignBits;
  return high + decode_reverse(rc, model->align, kAlignBits);
}

static uint8_t decode_literal(struct range_decoder* rc, uint16_t* tree) {
  unsigned node = 1;
  while (node < 0x100) node = node << 1 | decode_bit(rc, &tree[node]);
  return (uint8_t)node;
}

// After a match the byte at the match's distance is likely not the next one: it chooses the tree
// for as long as the bits agree with it.
static uint8_t decode_matched(struct range_decoder* rc, uint16_t* tree, unsigned match) {
  unsigned node = 1;
  unsigned offset = 0x100;
  while (node < 0x100) {
    match <<= 1;
    unsigned match_bit = match & offset;
    unsigned bit = decode_bit(rc, &tree[offset + match_bit + node]);
    node = node << 1 | bit;
    offset &= bit ? match : ~match;
  }
  return (uint8_t)node;
}

static uint64_t little_endian(const uint8_t* bytes, unsigned count) {
  uint64_t value = 0;
  while (count-- > 0) value = value << 8 | bytes[count];
  return value;
}

static bool at_end(struct range_decoder* rc) {
  normalize(rc);
  return !rc->starved && rc->code == 0 && rc->at == rc->end;
}

bool lzma_decode(struct lzma_model* model, const uint8_t* in, size_t in_size, uint8_t* out,
                 size_t out_size) {
  if (in_size < kHeaderSize + 5 || in[0] >= 9 * 5 * 5) return false;
  const unsigned lc = in[0] % 9;
  const unsigned lp = in[0] / 9 % 5;
  const unsigned pb = in[0] / 45;
  if (lc + lp > 4) return false;
  const uint64_t dictionary = little_endian(in + 1, 4);
  // The size is left open and an end marker follows the data: what xz writes.
  if (little_endian(in + 5, 8) != ~(uint64_t)0) return false;

  struct range_decoder rc = {in + kHeaderSize, in + in_size, ~(uint32_t)0, 0, false};
  if (next_byte(&rc) != 0) return false;
  for (int i = 0; i < 4; ++i) rc.code = rc.code << 8 | next_byte(&rc);
  uint16_t* probabilities = (uint16_t*)model;
  for (size_t i = 0; i < sizeof *model / sizeof *probabilities; ++i) probabilities[i] = kHalf;

  uint32_t rep[4] = {0, 0, 0, 0};  // The last distances, less one.
  unsigned state = 0;
  size_t at = 0;
  while (!rc.starved) {
    const unsigned position = (unsigned)at & ((1u << pb) - 1);
    if (!decode_bit(&rc, &model->is_match[state][position])) {
      if (at == out_size) return false;
      const unsigned before = at > 0 ? out[at - 1] : 0;
      uint16_t* tree =
          model->literal[(((unsigned)at & ((1u << lp) - 1)) << lc) + (before >> (8 - lc))];
      if (state < kFirstRepState) {
        out[at] = decode_literal(&rc, tree);
      } else {
        // A match went before, and its distance was checked against a smaller `at`.
        out[at] = decode_matched(&rc, tree, out[at - rep[0] - 1]);
      }
      ++at;
      state = state < 4 ? 0 : state < 10 ? state - 3 : state - 6;
      continue;
    }
    unsigned length;
    if (!decode_bit(&rc, &model->is_rep[state])) {
      length = decode_length(&rc, &model->match_length, position);
      rep[3] = rep[2];
      rep[2] = rep[1];
      rep[1] = rep[0];
      rep[0] = decode_distance(&rc, model, length);
      if (rep[0] == ~(uint32_t)0) return at == out_size && at_end(&rc);
      length += kMinMatch;
      state = state < kFirstRepState ? 7 : 10;
    } else {
      bool one_byte = false;
      if (!decode_bit(&rc, &model->is_rep0[state])) {
        one_byte = !decode_bit(&rc, &model->is_rep0_long[state][position]);
      } else {
        unsigned which = 1;
        if (decode_bit(&rc, &model->is_rep1[state])) {
          which = 2 + decode_bit(&rc, &model->is_rep2[state]);
        }
        const uint32_t distance = rep[which];
        for (; which > 0; --which) rep[which] = rep[which - 1];
        rep[0] = distance;
      }
      if (one_byte) {
        length = 1;
        state = state < kFirstRepState ? 9 : 11;
      } else {
        length = kMinMatch + decode_length(&rc, &model->rep_length, position);
        state = state < kFirstRepState ? 8 : 11;
      }
    }
    if (rep[0] >= at || rep[0] >= dictionary || length > out_size - at) return false;
    // Byte by byte: a match may reach into what it writes.
    for (; length > 0; --length, ++at) out[at] = out[at - rep[0] - 1];
  }
  return false;
}

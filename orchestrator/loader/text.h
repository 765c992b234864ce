#pragma once

// What the loader reads and says. Pure.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// A text of bounded length; what is too much is left away. Always ends in a zero byte.
struct text {
  size_t size;
  char chars[1536];
};

static inline void text_clear(struct text* text) {
  text->size = 0;
  text->chars[0] = '\0';
}
void text_add(struct text* text, const char* more);
void text_add_number(struct text* text, uint64_t number);
// A system error's number in words.
void text_add_error(struct text* text, long error);

size_t text_length(const char* s);
bool text_equal(const char* a, const char* b);

// A decimal number of at most `most`, and nothing else.
bool parse_number(const char* s, uint64_t most, uint64_t* number);
// 64 hexadecimal digits, and nothing else.
bool parse_hex32(const char* s, uint8_t bytes[32]);
// An IPv4 or IPv6 address in numbers; its length in `bytes` (4 or 16), or 0 if it is none. A zone
// (fe80::1%eth0) is none: it means something on one host only.
unsigned parse_address(const char* s, uint8_t bytes[16]);

// Cuts the next word off a line whose words stand apart by one space; null at the end.
char* next_word(char** rest);

#ifdef __cplusplus
}
#endif

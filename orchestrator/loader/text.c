#include "orchestrator/loader/text.h"

#include <linux/errno.h>

void text_add(struct text* text, const char* more) {
  while (*more != '\0' && text->size + 1 < sizeof text->chars) text->chars[text->size++] = *more++;
  text->chars[text->size] = '\0';
}

void text_add_number(struct text* text, uint64_t number) {
  char digits[21];
  char* at = digits + sizeof digits - 1;
  *at = '\0';
  do {
    *--at = (char)('0' + number % 10);
    number /= 10;
  } while (number > 0);
  text_add(text, at);
}

void text_add_error(struct text* text, long error) {
  static const struct {
    short number;
    const char* words;
  } kErrors[] = {
      {EPERM, "Operation not permitted"},
      {ENOENT, "No such file or directory"},
      {EIO, "Input/output error"},
      {ENOEXEC, "Exec format error"},
      {ENOMEM, "Cannot allocate memory"},
      {EACCES, "Permission denied"},
      {ENOTDIR, "Not a directory"},
      {EMFILE, "Too many open files"},
      {EFBIG, "File too large"},
      {ENOSPC, "No space left on device"},
      {EROFS, "Read-only file system"},
      {ELOOP, "Too many levels of symbolic links"},
      {EAFNOSUPPORT, "Address family not supported by protocol"},
      {ENETUNREACH, "Network is unreachable"},
      {ECONNRESET, "Connection reset by peer"},
      {ETIMEDOUT, "Connection timed out"},
      {ECONNREFUSED, "Connection refused"},
      {EHOSTUNREACH, "No route to host"},
      {EDQUOT, "Disk quota exceeded"},
      {ESTALE, "Stale file handle"},
  };
  for (size_t i = 0; i < sizeof kErrors / sizeof *kErrors; ++i) {
    if (kErrors[i].number == error) {
      text_add(text, kErrors[i].words);
      return;
    }
  }
  text_add(text, "error ");
  text_add_number(text, (uint64_t)error);
}

size_t text_length(const char* s) {
  size_t size = 0;
  while (s[size] != '\0') ++size;
  return size;
}

bool text_equal(const char* a, const char* b) {
  while (*a != '\0' && *a == *b) ++a, ++b;
  return *a == *b;
}

bool parse_number(const char* s, uint64_t most, uint64_t* number) {
  if (*s == '\0') return false;
  *number = 0;
  for (; *s != '\0'; ++s) {
    if (*s < '0' || *s > '9') return false;
    *number = *number * 10 + (uint64_t)(*s - '0');
    // `most` is below 2^60, so this is seen before the number overflows.
    if (*number > most) return false;
  }
  return true;
}

static int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool parse_hex32(const char* s, uint8_t bytes[32]) {
  for (int i = 0; i < 64; ++i) {
    int digit = hex_digit(s[i]);
    if (digit < 0) return false;
    bytes[i / 2] = (uint8_t)(bytes[i / 2] << 4 | digit);
  }
  return s[64] == '\0';
}

static bool parse_ipv4(const char* s, uint8_t bytes[4]) {
  for (int i = 0; i < 4; ++i) {
    unsigned value = 0;
    int digits = 0;
    for (; *s >= '0' && *s <= '9' && digits < 4; ++s, ++digits) {
      value = value * 10 + (unsigned)(*s - '0');
    }
    if (digits == 0 || value > 255) return false;
    bytes[i] = (uint8_t)value;
    if (i < 3 && *s++ != '.') return false;
  }
  return *s == '\0';
}

static bool parse_ipv6(const char* s, uint8_t bytes[16]) {
  uint8_t parts[16];
  int count = 0;  // Bytes in `parts`.
  int gap = -1;   // Where "::" stands.
  if (s[0] == ':' && s[1] == ':') {
    gap = 0;
    s += 2;
  }
  while (*s != '\0') {
    if (count == 16) return false;
    const char* word = s;
    unsigned value = 0;
    for (; hex_digit(*s) >= 0 && s - word < 5; ++s) value = value << 4 | (unsigned)hex_digit(*s);
    if (*s == '.') {
      if (count > 12 || !parse_ipv4(word, parts + count)) return false;
      count += 4;
      break;
    }
    if (s == word || s - word > 4) return false;
    parts[count++] = (uint8_t)(value >> 8);
    parts[count++] = (uint8_t)value;
    if (*s == '\0') break;
    if (*s++ != ':') return false;
    if (*s == ':') {
      if (gap >= 0) return false;
      gap = count;
      ++s;
    } else if (*s == '\0') {
      return false;
    }
  }
  if (gap < 0 ? count != 16 : count > 14) return false;
  if (gap < 0) gap = count;
  for (int i = 0; i < 16; ++i) bytes[i] = 0;
  for (int i = 0; i < gap; ++i) bytes[i] = parts[i];
  for (int i = gap; i < count; ++i) bytes[16 - count + i] = parts[i];
  return true;
}

unsigned parse_address(const char* s, uint8_t bytes[16]) {
  if (parse_ipv4(s, bytes)) return 4;
  return parse_ipv6(s, bytes) ? 16 : 0;
}

char* next_word(char** rest) {
  char* word = *rest;
  if (word == NULL) return NULL;
  char* at = word;
  while (*at != '\0' && *at != ' ') ++at;
  *rest = *at == ' ' ? at + 1 : NULL;
  *at = '\0';
  return word;
}

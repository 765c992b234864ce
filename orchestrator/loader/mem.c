// The functions that the compiler may call without being asked to.

#include <stddef.h>

// Used: the compiler calls them when link-time optimisation has already dropped what nobody calls.
#define CALLED_BY_THE_COMPILER __attribute__((used))
CALLED_BY_THE_COMPILER void* memcpy(void* to, const void* from, size_t size);
CALLED_BY_THE_COMPILER void* memset(void* to, int value, size_t size);
CALLED_BY_THE_COMPILER void* memmove(void* to, const void* from, size_t size);
CALLED_BY_THE_COMPILER int memcmp(const void* a, const void* b, size_t size);

void* memcpy(void* to, const void* from, size_t size) {
  for (size_t i = 0; i < size; ++i) ((char*)to)[i] = ((const char*)from)[i];
  return to;
}

void* memset(void* to, int value, size_t size) {
  for (size_t i = 0; i < size; ++i) ((char*)to)[i] = (char)value;
  return to;
}

void* memmove(void* to, const void* from, size_t size) {
  if ((const char*)to <= (const char*)from) return memcpy(to, from, size);
  while (size-- > 0) ((char*)to)[size] = ((const char*)from)[size];
  return to;
}

int memcmp(const void* a, const void* b, size_t size) {
  for (size_t i = 0; i < size; ++i) {
    int difference = ((const unsigned char*)a)[i] - ((const unsigned char*)b)[i];
    if (difference != 0) return difference;
  }
  return 0;
}

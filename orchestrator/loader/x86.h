#pragma once

// Undoes xz's filter for x86 code ("BCJ"). It has put into calls and jumps the address they go to,
// which repeats, where the code has the distance, which does not.

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// In place; `code` is the whole program. Whatever it holds, nothing outside is touched.
void x86_restore(uint8_t* code, size_t size);

#ifdef __cplusplus
}
#endif

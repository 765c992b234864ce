// Parts of libraries that the agent never uses and that the linker would bring all the same: a
// fifth of the program. With these names taken it leaves their files in the archives. Should one of
// the files be wanted for another name, both define these, and linking fails.

#include <stdint.h>

#define LEFT_OUT(name) \
  void* name(void);    \
  void* name(void) {   \
    return 0;          \
  }

// zstd's formats from before 1.0. The first thing that the decoder asks for is a context, and no
// context is an error.
#define OLD_FORMAT(version)                            \
  LEFT_OUT(ZBUFFv##version##_createDCtx)               \
  LEFT_OUT(ZBUFFv##version##_freeDCtx)                 \
  LEFT_OUT(ZBUFFv##version##_decompressInitDictionary) \
  LEFT_OUT(ZBUFFv##version##_decompressContinue)       \
  LEFT_OUT(ZSTDv##version##_createDCtx)                \
  LEFT_OUT(ZSTDv##version##_freeDCtx)                  \
  LEFT_OUT(ZSTDv##version##_decompress_usingDict)      \
  LEFT_OUT(ZSTDv##version##_findFrameSizeInfoLegacy)   \
  LEFT_OUT(ZSTDv##version##_getFrameParams)
OLD_FORMAT(05)
OLD_FORMAT(06)
OLD_FORMAT(07)

// sodium_init() chooses an implementation of everything that libsodium can do. We seal with AES-GCM
// or ChaCha20-Poly1305 and hash with BLAKE2b.
LEFT_OUT(_crypto_pwhash_argon2_pick_best_implementation)
LEFT_OUT(_crypto_scalarmult_curve25519_pick_best_implementation)
LEFT_OUT(_crypto_stream_salsa20_pick_best_implementation)

// BLAKE2b in three more ways, for processors that have one or the other extension. It hashes a few
// hundred bytes when two nodes greet each other.
int blake2b_compress_ref(void* state, const uint8_t* block);

#define AS_REF(name)                            \
  int name(void* state, const uint8_t* block);  \
  int name(void* state, const uint8_t* block) { \
    return blake2b_compress_ref(state, block);  \
  }
AS_REF(blake2b_compress_ssse3)
AS_REF(blake2b_compress_sse41)
AS_REF(blake2b_compress_avx2)

// What C++ names mean: for the text of an exception that nobody catches, which says the rest all
// the same. ds-probe asks the node's own library.
LEFT_OUT(__cxa_demangle)

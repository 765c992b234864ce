#pragma once

// What every op library promises, in C and without torch, so that a program can load and test an op
// that it knows nothing about.
//
//   int ds_self_test_<op>(const char* device, char* detail, unsigned long detail_size);
//
// Computes a small problem on `device` ("cpu", "cuda", "cuda:1", …; NULL or "" is the op's first
// device) on every code path that this machine can run, and compares it with a float64 reference.
// Writes one line without a newline, cut to detail_size and always NUL-terminated, to `detail`
// (which may be NULL if detail_size is 0). Takes less than 100 ms, leaves no thread behind, may be
// called from any thread and more than once. Never throws.

#ifdef __cplusplus
extern "C" {
#endif

enum DsSelfTest {
  DS_SELF_TEST_OK = 0,     // Right numbers; the detail says on what, and how far off the worst is.
  DS_SELF_TEST_WRONG = 1,  // Wrong numbers; the detail names the path and the first bad element.
  DS_SELF_TEST_MISSING = 2,  // Something that the op needs is not there; the detail names it.
  DS_SELF_TEST_SKIPPED = 3,  // Not for this machine or device; the detail says why.
};

typedef int (*DsSelfTestFunction)(const char* device, char* detail, unsigned long detail_size);

#ifdef __cplusplus
}
#endif

// Libraries are built with hidden visibility: only what carries this mark can be seen from outside,
// so that any set of ops can live in one program.
#define DS_EXPORT __attribute__((visibility("default")))

// For the few functions that host and device both compute.
#ifdef __CUDACC__
#define DS_HOST_DEVICE __host__ __device__
#else
#define DS_HOST_DEVICE
#endif

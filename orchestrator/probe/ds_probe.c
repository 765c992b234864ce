// ds-probe <library> <op> <device>: loads one op and runs its self-test, in a process of its own,
// so that an op that crashes, hangs or calls exit() costs one cell of the report.
//
// It answers on descriptor 3, one line a step, each beginning with the nonce in DS_PROBE_NONCE, so
// that nothing which an op prints can be taken for an answer:
//
//   <nonce> load                      before dlopen
//   <nonce> refused <dlerror>         the loader did not take it
//   <nonce> no-test <symbol>          it has no self-test
//   <nonce> test                      before the self-test
//   <nonce> result <code> <detail>    0 ok, 1 wrong, 2 missing dependency, 3 skipped
//
// A line that ought to follow and does not is the crash.
#define _GNU_SOURCE

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { kAnswerFd = 3, kDetailSize = 2048 };

static char nonce[65];
static int answer_fd = -1;

// One write: shorter than PIPE_BUF, so it arrives whole or not at all.
static void answer(const char* step, const char* text) {
  char line[kDetailSize + 256];
  int length = snprintf(line, sizeof line, "%s %s %s", nonce, step, text);
  if (length < 0) _exit(70);
  if ((size_t)length >= sizeof line) length = (int)sizeof line - 1;
  for (int i = 0; i < length; ++i) {
    if (line[i] == '\n' || line[i] == '\r') line[i] = ' ';
  }
  line[length++] = '\n';
  if (write(answer_fd, line, (size_t)length) != length) _exit(71);
}

int main(int argc, char** argv) {
  const char* given = getenv("DS_PROBE_NONCE");
  if (argc != 4 || given == NULL || strlen(given) >= sizeof nonce) {
    fprintf(stderr, "usage: ds-probe LIBRARY OP DEVICE (started by ds-agent)\n");
    return 64;
  }
  strcpy(nonce, given);
  unsetenv("DS_PROBE_NONCE");
  // Out of the op's way: descriptor 3 is the one that a careless program closes or writes to.
  answer_fd = fcntl(kAnswerFd, F_DUPFD_CLOEXEC, 100);
  if (answer_fd < 0) return 65;
  close(kAnswerFd);

  answer("load", "");
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    const char* why = dlerror();
    answer("refused", why != NULL ? why : "dlopen failed without a reason");
    _exit(0);
  }
  char symbol[256];
  snprintf(symbol, sizeof symbol, "ds_self_test_%s", argv[2]);
  void* address = dlsym(library, symbol);
  if (address == NULL) {
    answer("no-test", symbol);
    _exit(0);
  }
  int (*self_test)(const char*, char*, unsigned long) = NULL;
  // ISO C knows no conversion from an object's address to a function's; POSIX promises that the
  // bytes are the same.
  memcpy(&self_test, &address, sizeof self_test);

  answer("test", "");
  static char detail[kDetailSize];
  int code = self_test(argv[3], detail, sizeof detail);
  detail[sizeof detail - 1] = '\0';
  char result[kDetailSize + 32];
  snprintf(result, sizeof result, "%d %s", code, detail);
  answer("result", result);
  // Not exit(): destructors of a dozen libraries are not what is asked about.
  _exit(0);
}

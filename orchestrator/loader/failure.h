#pragma once

#include "orchestrator/loader/text.h"

// Why something could not be done. The codes are exit codes too: see main.c.
enum {
  kFailUsage = 2,
  kFailStore = 60,    // The folder that the agent belongs in cannot be opened.
  kFailWrite = 61,    // No space, no permission, a file system that is read-only.
  kFailStart = 62,    // The kernel does not run the agent.
  kFailMemory = 63,   // None left.
  kFailInput = 64,    // Standard input ended or fell silent before its time.
  kFailCorrupt = 65,  // What came cannot be unpacked.
  kFailDigest = 66,   // It is another file than the one asked for.
  kFailConnect = 70,  // No address of the peer answers.
  kFailRefused = 71,  // The peer hangs up: another key, another agent, or no time for us.
  kFailBroken = 72,   // The connection ended in the middle.
  kFailSilent = 73,   // Nothing came for too long, or all of it took too long.
};

struct failure {
  int code;  // 0: none.
  struct text text;
};

// Sets the code; returns the text, empty, for the caller to fill.
static inline struct text* fail_with(struct failure* failure, int code) {
  failure->code = code;
  text_clear(&failure->text);
  return &failure->text;
}

static inline void no_failure(struct failure* failure) {
  fail_with(failure, 0);
}

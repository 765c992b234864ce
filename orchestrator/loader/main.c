// ds-loader: what travels to a node before the agent does. A few KiB, no library, no libc: it has
// to be small, because the head sends it to every host, and it has to run anywhere.
//
//   ds-loader                                        does nothing: can this file be run here?
//   ds-loader load DIGEST SIZE WIRE_SIZE NONCE PREFIX FOLDER
//
// The second gets the agent with this SHA-256 and size, of which the .lzma file has WIRE_SIZE
// bytes (./pack makes it), puts it at FOLDER/DIGEST.x (and as it came at DIGEST.lzma, for others),
// and becomes it. FOLDER is PREFIX/store, or one that goes with the agent. Says on standard output,
// after whatever a login shell has printed:
//
//   DSL0 NONCE ready             it waits for a request on standard input, one line:
//     stdin                      WIRE_SIZE bytes follow. Not one more is read: they are the
//     agent's. peer KEY PORT CONNECT STALL TOTAL ADDRESS...
//                                from a node that has it; times in milliseconds, the key of the run
//                                in hexadecimal digits (it is not an argument: those are public)
//   DSL0 NONCE failed CODE TEXT  that request could not be met, and it waits for another
//   DSI1 NONCE                   the agent's greeting
//
// What no other source can mend (no space, say) ends it with one line on standard error. At the end
// of its input it leaves, with the code and text of the last request's failure. An unfinished file
// never bears a name that means something.

#include "orchestrator/loader/failure.h"
#include "orchestrator/loader/lzma.h"
#include "orchestrator/loader/peer.h"
#include "orchestrator/loader/sha256.h"
#include "orchestrator/loader/store.h"
#include "orchestrator/loader/stream.h"
#include "orchestrator/loader/sys.h"
#include "orchestrator/loader/x86.h"

enum {
  kMaxSize = 256 << 20,
  kMaxLine = 1024,
  kMaxMs = 3600 * 1000,
  // A head that is there says what it wants, and sends, long before.
  kRequestMs = 1800 * 1000,
  kStdinStallMs = 300 * 1000,
};

struct job {
  struct store store;
  const char* prefix;
  uint8_t digest[32];
  size_t size;
  size_t wire_size;
  uint8_t* wire;   // As it came.
  uint8_t* agent;  // Unpacked.
  char* const* environment;
};

static struct lzma_model model;

static void say(int fd, struct text* text) {
  size_t done = 0;
  while (done < text->size) {
    long n = sys_write(fd, text->chars + done, text->size - done);
    if (n <= 0 && n != -EINTR) return;
    if (n > 0) done += (size_t)n;
  }
}

__attribute__((noreturn)) static void leave(struct failure* failure) {
  if (failure->code != 0) {
    // The text may fill its room: the line must end all the same.
    if (failure->text.size + 2 > sizeof failure->text.chars) {
      failure->text.size = sizeof failure->text.chars - 2;
    }
    text_add(&failure->text, "\n");
    say(2, &failure->text);
  }
  sys_exit(failure->code);
}

static void tell_head(const struct job* job, const struct failure* failure) {
  struct text line;
  text_clear(&line);
  text_add(&line, "\nDSL0 ");
  text_add(&line, job->store.nonce);
  if (failure == NULL) {
    text_add(&line, " ready");
  } else {
    text_add(&line, " failed ");
    text_add_number(&line, (uint64_t)failure->code);
    text_add(&line, " ");
    text_add(&line, failure->text.chars);
  }
  if (line.size + 2 > sizeof line.chars) line.size = sizeof line.chars - 2;
  text_add(&line, "\n");
  say(1, &line);
}

// A line without its newline. Byte by byte, because what follows is not ours.
static bool read_line(char line[kMaxLine], struct failure* failure) {
  const struct patience patience = {sys_now_ms() + kRequestMs, kRequestMs};
  for (size_t size = 0; size < kMaxLine; ++size) {
    long error = 0;
    enum stream_end end = stream_read(0, &line[size], 1, patience, &error);
    if (end == kStreamEnded && size == 0) return false;
    if (end != kStreamDone) {
      text_add(fail_with(failure, kFailInput), "standard input ended in the middle of a request");
      return false;
    }
    if (line[size] == '\n') {
      line[size] = '\0';
      return true;
    }
  }
  text_add(fail_with(failure, kFailUsage), "a request is too long");
  return false;
}

static bool parse_peer(char* rest, struct peer* peer) {
  uint64_t port = 0;
  uint64_t times[3] = {0, 0, 0};
  char* key = next_word(&rest);
  if (key == NULL || !parse_hex32(key, peer->key)) return false;
  char* word = next_word(&rest);
  if (word == NULL || !parse_number(word, 65535, &port) || port == 0) return false;
  for (int i = 0; i < 3; ++i) {
    word = next_word(&rest);
    if (word == NULL || !parse_number(word, kMaxMs, &times[i])) return false;
  }
  peer->port = (uint16_t)port;
  peer->connect_ms = (int64_t)times[0];
  peer->stall_ms = (int64_t)times[1];
  peer->total_ms = (int64_t)times[2];
  peer->address_count = 0;
  while ((word = next_word(&rest)) != NULL && peer->address_count < kMaxAddresses) {
    peer->addresses[peer->address_count++] = word;
  }
  return peer->address_count > 0;
}

static bool read_from_head(const struct job* job, struct failure* failure) {
  const struct patience patience = {sys_now_ms() + kRequestMs, kStdinStallMs};
  long error = 0;
  enum stream_end end = stream_read(0, job->wire, job->wire_size, patience, &error);
  if (end == kStreamDone) return true;
  text_add(fail_with(failure, kFailInput),
           end == kStreamSilent ? "standard input fell silent before the agent was whole"
                                : "standard input ended before the agent was whole");
  return false;
}

// `wire` is what came. True if the agent in it is the one that was asked for.
static bool unpack(const struct job* job, struct failure* failure) {
  if (!lzma_decode(&model, job->wire, job->wire_size, job->agent, job->size)) {
    text_add(fail_with(failure, kFailCorrupt), "the agent that came cannot be unpacked");
    return false;
  }
#if defined(__x86_64__)
  x86_restore(job->agent, job->size);
#endif
  struct LoaderSha256 sha;
  uint8_t digest[kSha256Size];
  loader_sha256_start(&sha);
  loader_sha256_add(&sha, job->agent, job->size);
  loader_sha256_end(&sha, digest);
  for (int i = 0; i < kSha256Size; ++i) {
    if (digest[i] != job->digest[i]) {
      text_add(fail_with(failure, kFailDigest), "the SHA-256 of the agent that came differs");
      return false;
    }
  }
  return true;
}

__attribute__((noreturn)) static void become_agent(const struct job* job) {
  static const char kServe[] = "serve";
  struct text path;
  text_clear(&path);
  text_add(&path, job->store.path);
  text_add(&path, "/");
  text_add(&path, job->store.digest);
  text_add(&path, ".x");
  char* const words[] = {path.chars, (char*)kServe, (char*)job->store.nonce, (char*)job->prefix,
                         NULL};
  long error = sys_execve(path.chars, words, job->environment);
  struct failure failure;
  struct text* text = fail_with(&failure, kFailStart);
  text_add(text, "cannot start ");
  text_add(text, path.chars);
  text_add(text, ": ");
  text_add_error(text, -error);
  leave(&failure);
}

__attribute__((noreturn)) static void keep_and_become(const struct job* job) {
  struct failure failure;
  no_failure(&failure);
  if (!store_put_agent(&job->store, job->digest, job->agent, job->size, &failure)) leave(&failure);
  // The agent runs without it; only others cannot have it from here.
  store_put_compressed(&job->store, job->wire, job->wire_size, &failure);
  become_agent(job);
}

__attribute__((noreturn)) static void obey_requests(const struct job* job) {
  struct failure failure;
  no_failure(&failure);
  tell_head(job, NULL);
  for (;;) {
    char line[kMaxLine];
    if (!read_line(line, &failure)) leave(&failure);
    char* rest = line;
    const char* word = next_word(&rest);
    if (text_equal(word, "stdin") && rest == NULL) {
      // Out of step with the head, or the head is out of step with itself: no second try.
      if (!read_from_head(job, &failure) || !unpack(job, &failure)) leave(&failure);
      keep_and_become(job);
    }
    struct peer peer;
    if (!text_equal(word, "peer") || !parse_peer(rest, &peer)) {
      text_add(fail_with(&failure, kFailUsage), "a request is malformed");
      leave(&failure);
    }
    if (fetch_from_peer(&peer, job->digest, job->wire, job->wire_size, &failure) &&
        unpack(job, &failure)) {
      keep_and_become(job);
    }
    tell_head(job, &failure);
  }
}

// The file that runs is not needed any more; what is in use lives on without a name.
static void remove_self(const char* path) {
  static const char kSuffix[] = ".upload";
  size_t size = text_length(path);
  if (size > sizeof kSuffix && text_equal(path + size - (sizeof kSuffix - 1), kSuffix)) {
    sys_unlinkat(AT_FDCWD, path);
  }
}

// `stack` is what the kernel left: the number of arguments, they, a null, the environment.
__attribute__((used)) __attribute__((noreturn)) void start_c(long* stack);
void start_c(long* stack) {
  const long count = stack[0];
  char** words = (char**)(stack + 1);
  if (count < 2) sys_exit(0);

  struct job job;
  struct failure failure;
  no_failure(&failure);
  uint64_t size = 0;
  uint64_t wire_size = 0;
  remove_self(words[0]);
  if (count != 8 || !text_equal(words[1], "load") || !parse_hex32(words[2], job.digest) ||
      !parse_number(words[3], kMaxSize, &size) || !parse_number(words[4], kMaxSize, &wire_size) ||
      text_length(words[5]) > 64 || text_length(words[7]) > 1024) {
    text_add(fail_with(&failure, kFailUsage),
             "usage: ds-loader load DIGEST SIZE WIRE_SIZE NONCE PREFIX FOLDER");
    leave(&failure);
  }
  job.size = size;
  job.wire_size = wire_size;
  job.environment = words + count + 1;
  job.prefix = words[6];
  job.store = (struct store){-1, words[7], words[2], words[5]};
  if (!store_open(&job.store, &failure)) leave(&failure);
  if (store_has_agent(&job.store, job.digest, job.size)) become_agent(&job);
  job.wire = sys_memory(job.wire_size);
  job.agent = sys_memory(job.size);
  if (job.wire == NULL || job.agent == NULL) {
    text_add(fail_with(&failure, kFailMemory), "Cannot allocate memory for the agent");
    leave(&failure);
  }
  obey_requests(&job);
}

SYS_ENTRY;

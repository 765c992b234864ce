#include "orchestrator/loader/store.h"

#include "orchestrator/loader/sha256.h"
#include "orchestrator/loader/sys.h"

static const char kAgent[] = ".x";
static const char kCompressed[] = ".lzma";

static struct text name_of(const struct store* store, const char* suffix) {
  struct text name;
  text_clear(&name);
  text_add(&name, store->digest);
  text_add(&name, suffix);
  return name;
}

// What is called *.upload is nobody's after an hour, and the agent of a later run removes it.
static struct text partial_name(const struct store* store, const char* suffix) {
  struct text name;
  text_clear(&name);
  text_add(&name, store->nonce);
  text_add(&name, suffix);
  text_add(&name, ".upload");
  return name;
}

static bool refuse(int code, const char* what, const struct store* store, const char* name,
                   long error, struct failure* failure) {
  struct text* text = fail_with(failure, code);
  text_add(text, what);
  text_add(text, store->path);
  if (name != NULL) {
    text_add(text, "/");
    text_add(text, name);
  }
  text_add(text, ": ");
  text_add_error(text, error);
  return false;
}

bool store_open(struct store* store, struct failure* failure) {
  long fd = sys_openat(AT_FDCWD, store->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
  if (fd < 0) return refuse(kFailStore, "cannot open ", store, NULL, -fd, failure);
  store->folder = (int)fd;
  return true;
}

bool store_has_agent(const struct store* store, const uint8_t digest[32], size_t size) {
  struct text name = name_of(store, kAgent);
  long fd =
      sys_openat(store->folder, name.chars, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0);
  if (fd < 0) return false;
  struct stat status;
  bool same = sys_fstat((int)fd, &status) == 0 && S_ISREG(status.st_mode) &&
              (status.st_mode & 0777) == 0755 && status.st_size == (long)size;
  struct LoaderSha256 sha;
  loader_sha256_start(&sha);
  while (same) {
    static uint8_t buffer[16384];
    long n = sys_read((int)fd, buffer, sizeof buffer);
    if (n == -EINTR) continue;
    if (n <= 0) {
      same = n == 0;
      break;
    }
    loader_sha256_add(&sha, buffer, (size_t)n);
  }
  sys_close((int)fd);
  uint8_t found[kSha256Size];
  loader_sha256_end(&sha, found);
  for (int i = 0; i < kSha256Size; ++i) same = same && found[i] == digest[i];
  return same;
}

static long write_file(const struct store* store, const char* name, const uint8_t* bytes,
                       size_t size, unsigned mode) {
  sys_unlinkat(store->folder, name);
  long fd =
      sys_openat(store->folder, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return fd;
  long code = 0;
  for (size_t done = 0; done < size && code >= 0;) {
    code = sys_write((int)fd, bytes + done, size - done);
    if (code > 0) done += (size_t)code;
    if (code == 0) code = -EIO;
    if (code == -EINTR) code = 0;
  }
  // The mode is given here, so that the user's umask does not decide who can run it.
  if (code >= 0) code = sys_fchmod((int)fd, mode);
  if (code >= 0) code = sys_fsync((int)fd);
  // Network file systems say on closing what they could not write.
  long closed = sys_close((int)fd);
  return code < 0 ? code : closed;
}

static bool put(const struct store* store, const char* suffix, const uint8_t* bytes, size_t size,
                unsigned mode, const uint8_t* kept_digest, struct failure* failure) {
  struct text name = name_of(store, suffix);
  struct text partial = partial_name(store, suffix);
  long code = write_file(store, partial.chars, bytes, size, mode);
  if (code >= 0) {
    code = kept_digest != NULL ? sys_linkat(store->folder, partial.chars, name.chars) : -EEXIST;
    if (code >= 0 ||
        (code == -EEXIST && kept_digest != NULL && store_has_agent(store, kept_digest, size))) {
      sys_unlinkat(store->folder, partial.chars);
      code = 0;
    } else {
      // What is there is damaged, or the file system knows no hard links.
      code = sys_renameat(store->folder, partial.chars, name.chars);
    }
  }
  if (code >= 0) code = sys_fsync(store->folder);
  // Some file systems cannot sync a folder; the file is there.
  if (code == -EINVAL || code >= 0) return true;
  sys_unlinkat(store->folder, partial.chars);
  return refuse(kFailWrite, "cannot write ", store, name.chars, -code, failure);
}

bool store_put_agent(const struct store* store, const uint8_t digest[32], const uint8_t* bytes,
                     size_t size, struct failure* failure) {
  return put(store, kAgent, bytes, size, 0755, digest, failure);
}

bool store_put_compressed(const struct store* store, const uint8_t* bytes, size_t size,
                          struct failure* failure) {
  return put(store, kCompressed, bytes, size, 0644, NULL, failure);
}

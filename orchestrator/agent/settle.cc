#include "orchestrator/agent/settle.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "orchestrator/agent/folder.h"
#include "orchestrator/agent/prefix.h"
#include "orchestrator/base/file.h"

namespace dsi::agent {

namespace {

constexpr mode_t kProgramMode = 0755;

bool is_same(const Folder& a, const Folder& b) {
  struct stat one {};
  struct stat other {};
  return ::fstat(a.fd(), &one) == 0 && ::fstat(b.fd(), &other) == 0 && one.st_dev == other.st_dev &&
         one.st_ino == other.st_ino;
}

// Hosts may share a prefix, and another one may have been quicker.
bool is_whole(const Folder& store, const std::string& name) {
  struct stat status {};
  if (!store.status(name, status) || (status.st_mode & 07777) != kProgramMode) return false;
  auto fd = store.open_file(name);
  return fd && sha256_of(fd->get(), name).value_or("") == own_digest();
}

// A whole program that is there stays: on a network file system somebody may be running it.
Result<void> put(const Folder& store, const std::string& name, const std::string& draft,
                 std::string_view bytes, mode_t mode) {
  DSI_CHECK(store.remove(draft));
  Result<void> written = [&]() -> Result<void> {
    DSI_TRY(UniqueFd fd, store.create_file(draft, mode));
    errno = 0;
    if (!write_all(fd.get(), bytes) || ::fsync(fd.get()) != 0) {
      return fail_system(errno, fmt::format("cannot write {}", store.path_of(name)));
    }
    if (mode == kProgramMode && is_whole(store, name)) return store.remove(draft);
    DSI_CHECK(store.rename(draft, store, name));
    return store.sync();
  }();
  if (!written) (void)store.remove(draft);
  return written;
}

}  // namespace

Result<void> settle(const std::string& prefix, const std::string& nonce) {
  std::error_code ignored;
  auto self = std::filesystem::read_symlink("/proc/self/exe", ignored);
  DSI_TRY(Folder here, Folder::open(self.parent_path().string()));
  DSI_TRY(Folder root, Folder::make(prefix));
  DSI_TRY(Folder store, root.make_folder("store"));
  if (is_same(here, store)) return {};
  const std::string program = own_digest() + ".x";
  if (!is_whole(store, program)) {
    DSI_TRY(std::string bytes, read_file("/proc/self/exe"));
    DSI_CHECK(put(store, program, nonce + ".x.upload", bytes, kProgramMode));
  }
  // The agent runs without it; only others cannot have it from here.
  const std::string packed = own_digest() + ".lzma";
  if (auto bytes = here.read_file(packed); bytes && !store.exists(packed)) {
    (void)put(store, packed, nonce + ".lzma.upload", *bytes, 0644);
  }
  return {};
}

}  // namespace dsi::agent

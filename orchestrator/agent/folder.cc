#include "orchestrator/agent/folder.h"

#include <dirent.h>
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "orchestrator/base/file.h"
#include "orchestrator/base/sha256.h"

namespace dsi::agent {

tl::unexpected<Error> fail_system(int error_number, std::string what) {
  auto failure = fail_errno(error_number, std::move(what));
  std::string& help = failure.value().help;
  switch (error_number) {
    case EACCES:
      help = "make the folder writable for this user, or choose another with --prefix";
      break;
    case EPERM:
      help =
          "the file may be immutable (lsattr shows it, chattr -i ends it), or a policy forbids it";
      break;
    case EROFS:
      help = "remount the file system for writing, or choose another folder with --prefix";
      break;
    case ENOSPC:
      help = "free space or inodes there, or choose another folder with --prefix";
      break;
    case EDQUOT:
      help = "raise the user's quota, or choose another folder with --prefix";
      break;
    case EFBIG:
      help = "raise the limit on file sizes (ulimit -f)";
      break;
    case EIO:
      help = "the node's disk reports errors: look into dmesg";
      break;
    case ELOOP:
      help = "no symbolic link is followed below the prefix: remove it";
      break;
    case ENOTDIR:
      help = "something else stands where a folder has to be: move it away";
      break;
    default:
      break;
  }
  return failure;
}

Result<Folder> Folder::open(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return fail_system(errno, fmt::format("cannot open the folder {}", path));
  return Folder(std::move(fd), path);
}

Result<Folder> Folder::make(const std::string& path) {
  for (std::size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    std::string part = path.substr(0, slash);
    if (::mkdir(part.c_str(), 0755) != 0 && errno != EEXIST) {
      int error = errno;
      struct stat there {};
      // A parent on a read-only file system says EROFS although it is there.
      if (::stat(part.c_str(), &there) != 0 || !S_ISDIR(there.st_mode)) {
        return fail_system(error, fmt::format("cannot make the folder {}", part));
      }
    }
    if (slash == std::string::npos) break;
  }
  return open(path);
}

std::string Folder::path_of(std::string_view name) const {
  return fmt::format("{}/{}", path_, name);
}

Result<Folder> Folder::again() const {
  UniqueFd fd(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0));
  if (!fd) return fail_system(errno, fmt::format("cannot open the folder {}", path_));
  return Folder(std::move(fd), path_);
}

Result<Folder> Folder::folder(const std::string& name) const {
  UniqueFd fd(::openat(fd_.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd) {
    int error = errno;
    struct stat there {};
    // The kernel says ENOTDIR for a link that must not be followed.
    if (error == ENOTDIR && status(name, there) && S_ISLNK(there.st_mode)) error = ELOOP;
    return fail_system(error, fmt::format("cannot open the folder {}", path_of(name)));
  }
  return Folder(std::move(fd), path_of(name));
}

Result<Folder> Folder::make_folder(const std::string& name) const {
  if (::mkdirat(fd_.get(), name.c_str(), 0755) != 0 && errno != EEXIST) {
    int error = errno;
    if (!exists(name)) {
      return fail_system(error, fmt::format("cannot make the folder {}", path_of(name)));
    }
  }
  return folder(name);
}

bool Folder::status(const std::string& name, struct stat& status) const {
  return ::fstatat(fd_.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
}

bool Folder::exists(const std::string& name) const {
  struct stat there {};
  return status(name, there);
}

Result<UniqueFd> Folder::open_file(const std::string& name) const {
  // O_NONBLOCK: a planted FIFO must not hold the agent up.
  UniqueFd fd(::openat(fd_.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd) return fail_system(errno, fmt::format("cannot read {}", path_of(name)));
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return fail("{} is no regular file", path_of(name));
  }
  return fd;
}

Result<UniqueFd> Folder::create_file(const std::string& name, mode_t mode) const {
  UniqueFd fd(::openat(fd_.get(), name.c_str(),
                       O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
  if (!fd) return fail_system(errno, fmt::format("cannot create {}", path_of(name)));
  // Neither the umask nor a default ACL of the folder decides.
  if (::fchmod(fd.get(), mode) != 0) {
    return fail_system(errno, fmt::format("cannot set the mode of {}", path_of(name)));
  }
  return fd;
}

Result<void> Folder::write_file(const std::string& name, std::string_view data, mode_t mode) const {
  std::string partial = name + ".partial";
  DSI_CHECK(remove(partial));
  Result<void> written = [&]() -> Result<void> {
    DSI_TRY(UniqueFd fd, create_file(partial, mode));
    errno = 0;
    if (!write_all(fd.get(), data) || ::fsync(fd.get()) != 0) {
      return fail_system(errno, fmt::format("cannot write {}", path_of(name)));
    }
    DSI_CHECK(rename(partial, *this, name));
    return sync();
  }();
  if (!written) (void)remove(partial);
  return written;
}

Result<std::string> Folder::read_file(const std::string& name) const {
  DSI_TRY(UniqueFd fd, open_file(name));
  std::string data;
  DSI_CHECK(read_pieces(fd.get(), path_of(name), [&](std::string_view piece) -> Result<void> {
    data += piece;
    return {};
  }));
  return data;
}

Result<void> Folder::rename(const std::string& name, const Folder& to,
                            const std::string& new_name) const {
  if (::renameat(fd_.get(), name.c_str(), to.fd(), new_name.c_str()) != 0) {
    return fail_system(errno,
                       fmt::format("cannot rename {} to {}", path_of(name), to.path_of(new_name)));
  }
  return {};
}

Result<void> Folder::remove(const std::string& name) const {
  if (::unlinkat(fd_.get(), name.c_str(), 0) == 0 || errno == ENOENT) return {};
  int error = errno;
  struct stat there {};
  if (!status(name, there) || !S_ISDIR(there.st_mode)) {
    return fail_system(error, fmt::format("cannot remove {}", path_of(name)));
  }
  DSI_TRY(Folder inner, folder(name));
  DSI_TRY(std::vector<std::string> entries, inner.names());
  for (const std::string& entry : entries) DSI_CHECK(inner.remove(entry));
  if (::unlinkat(fd_.get(), name.c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT) {
    return fail_system(errno, fmt::format("cannot remove the folder {}", path_of(name)));
  }
  return {};
}

void Folder::remove_if_empty(const std::string& name) const {
  ::unlinkat(fd_.get(), name.c_str(), AT_REMOVEDIR);
}

Result<std::vector<std::string>> Folder::names() const {
  // A descriptor of its own: fdopendir takes it over and moves its offset.
  UniqueFd again(::openat(fd_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!again) return fail_system(errno, fmt::format("cannot list {}", path_));
  std::unique_ptr<DIR, int (*)(DIR*)> stream(::fdopendir(again.get()), ::closedir);
  if (!stream) return fail_system(errno, fmt::format("cannot list {}", path_));
  again.release();
  std::vector<std::string> found;
  errno = 0;
  while (dirent* entry = ::readdir(stream.get())) {
    std::string_view name = entry->d_name;
    if (name != "." && name != "..") found.emplace_back(name);
  }
  if (errno != 0) return fail_system(errno, fmt::format("cannot list {}", path_));
  std::sort(found.begin(), found.end());
  return found;
}

Result<void> Folder::sync() const {
  // EINVAL: some file systems (FUSE, old NFS) cannot fsync a folder; there is nothing better to do.
  if (::fsync(fd_.get()) != 0 && errno != EINVAL && errno != ENOTSUP) {
    return fail_system(errno, fmt::format("cannot fsync {}", path_));
  }
  return {};
}

Result<void> read_pieces(int fd, const std::string& path,
                         const std::function<Result<void>(std::string_view)>& piece) {
  std::vector<char> buffer(256 * 1024);
  for (;;) {
    ssize_t n = ::read(fd, buffer.data(), buffer.size());
    if (n == 0) return {};
    if (n < 0) {
      if (errno == EINTR) continue;
      return fail_system(errno, fmt::format("cannot read {}", path));
    }
    DSI_CHECK(piece({buffer.data(), static_cast<std::size_t>(n)}));
  }
}

Result<std::string> sha256_of(int fd, const std::string& path) {
  Sha256 hash;
  DSI_CHECK(read_pieces(fd, path, [&](std::string_view piece) -> Result<void> {
    hash.update(piece.data(), piece.size());
    return {};
  }));
  return hash.hex();
}

}  // namespace dsi::agent

#include "file.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <system_error>
#include <utility>
#include <vector>

#include "async_io.h"

namespace ds {
namespace {

constexpr std::size_t kKeptOpen = 64;

std::string quoted(const std::string& path) {
  return "\"" + path + "\"";
}

// Opening a pipe would wait for its other end, and a folder opens but cannot be read.
void refuse_what_has_no_offsets(const std::string& path, mode_t mode) {
  if (S_ISDIR(mode)) throw io_error(EISDIR, "cannot open " + quoted(path));
  if (S_ISFIFO(mode) || S_ISSOCK(mode)) throw io_error(ESPIPE, "cannot open " + quoted(path));
}

int open_retrying(const char* path, int flags) {
  int fd;
  do {
    fd = ::open(path, flags | O_CLOEXEC, 0666);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

int open_file(const std::string& path, bool write, bool& direct) {
  const int flags = write ? O_WRONLY | O_CREAT : O_RDONLY;
  int fd = -1;
  if (direct) {
    fd = open_retrying(path.c_str(), flags | O_DIRECT);
    if (fd < 0 && errno == EINVAL) direct = false;
  }
  if (!direct) fd = open_retrying(path.c_str(), flags);
  return fd;
}

std::int64_t size_of(int fd, mode_t mode) {
  if (S_ISBLK(mode)) {
    std::uint64_t bytes = 0;
    if (ioctl(fd, BLKGETSIZE64, &bytes) == 0) return static_cast<std::int64_t>(bytes);
  }
  struct stat now {};
  if (S_ISREG(mode) && fstat(fd, &now) == 0) return now.st_size;
  return std::numeric_limits<std::int64_t>::max();
}

}  // namespace

std::system_error io_error(int code, const std::string& what) {
  return std::system_error(code, std::generic_category(), "async_io: " + what);
}

File::File(std::string name, int fd, bool write, bool direct)
    : name_(std::move(name)), fd_(fd), write_(write), direct_(direct) {
  align_ = std::max<std::int64_t>(align_, sysconf(_SC_PAGESIZE));
  struct stat now {};
  if (fstat(fd, &now) == 0) {
    device_ = now.st_dev;
    inode_ = now.st_ino;
    mode_ = now.st_mode;
  }
#ifdef STATX_DIOALIGN
  struct statx more {};
  if (direct && statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &more) == 0 &&
      (more.stx_mask & STATX_DIOALIGN) != 0) {
    if (more.stx_dio_offset_align == 0) {
      direct_ = false;  // This file is not for direct operations (encrypted, say).
    } else {
      align_ = std::max<std::int64_t>(align_, more.stx_dio_offset_align);
      memory_align_ = std::max<std::int64_t>(1, more.stx_dio_mem_align);
    }
  }
#endif
}

File::~File() {
  ::close(fd_);
  if (const int fd = buffered_fd_.load(); fd >= 0 && fd != fd_) ::close(fd);
}

std::shared_ptr<File> File::open(const std::string& path, bool write, bool direct) {
  const int fd = open_file(path, write, direct);
  if (fd < 0) {
    throw io_error(errno, "cannot open " + quoted(path) + (write ? " to write" : " to read"));
  }
  std::shared_ptr<File> file(new File(quoted(path), fd, write, direct));
  if (!direct) file->buffered_fd_ = fd;
  refuse_what_has_no_offsets(path, file->mode_);
  return file;
}

std::shared_ptr<File> File::of_descriptor(int fd, bool write, bool direct) {
  const std::string name = "descriptor " + std::to_string(fd);
  const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (own < 0) throw io_error(errno, "cannot use " + name);
  const int flags = fcntl(own, F_GETFL);
  const bool is_direct = (flags & O_DIRECT) != 0;
  std::shared_ptr<File> file(new File(name, own, write, is_direct));
  const int mode = flags & O_ACCMODE;
  if (mode != O_RDWR && mode != (write ? O_WRONLY : O_RDONLY)) {
    throw io_error(EBADF, name + " is not open to " + (write ? "write" : "read"));
  }
  // pwrite would not write where it is told to.
  if (write && (flags & O_APPEND) != 0) {
    throw io_error(EINVAL, name + " is open to append; it cannot be written at an offset");
  }
  if (!is_direct) file->buffered_fd_ = own;
  if (!direct) file->direct_ = false;
  refuse_what_has_no_offsets(name, file->mode_);
  return file;
}

int File::buffered_fd() {
  if (const int fd = buffered_fd_.load(std::memory_order_acquire); fd >= 0) return fd;
  const std::lock_guard lock(mutex_);
  if (buffered_fd_.load() >= 0) return buffered_fd_;
  // By the descriptor, not by the name: that may be another file's by now.
  const std::string path = "/proc/self/fd/" + std::to_string(fd_);
  const int fd = open_retrying(path.c_str(), write_ ? O_WRONLY : O_RDONLY);
  if (fd < 0) throw io_error(errno, "cannot open " + name_ + " again through " + path);
  // Only edges are read this way; what lies around them is not wanted.
  posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
  buffered_fd_.store(fd, std::memory_order_release);
  return fd;
}

std::int64_t File::size() const {
  return size_of(fd_, mode_);
}

void File::reserve(std::int64_t begin, std::int64_t end) {
  if (!S_ISREG(mode_)) return;
  int code;
  do {
    code = fallocate(fd_, 0, begin, end - begin) == 0 ? 0 : errno;
  } while (code == EINTR);
  if (code == ENOSPC || code == EDQUOT || code == EFBIG || code == EIO) {
    throw io_error(code, "cannot reserve " + std::to_string(end - begin) + " bytes at offset " +
                             std::to_string(begin) + " of " + name_);
  }
}

FoundFile FileCache::get(const std::string& path, bool write, bool direct, std::uint64_t asked) {
  const std::string key = (write ? "w" : "r") + path;
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = entries_.find(key); it != entries_.end() && it->second.looked_up >= asked) {
      it->second.used = std::chrono::steady_clock::now();
      return {it->second.file, it->second.size};
    }
  }
  const std::uint64_t looked_up = asked_.load(std::memory_order_acquire);
  struct stat now {};
  const bool exists = ::stat(path.c_str(), &now) == 0;
  if (exists) refuse_what_has_no_offsets(path, now.st_mode);
  std::vector<std::shared_ptr<File>> closed;
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = entries_.find(key); it != entries_.end()) {
      if (exists && it->second.file->is(now.st_dev, now.st_ino)) {
        Entry& entry = it->second;
        entry.used = std::chrono::steady_clock::now();
        // Another thread may have looked later.
        if (entry.looked_up < looked_up) {
          entry.looked_up = looked_up;
          entry.size = S_ISREG(now.st_mode) ? now.st_size : entry.file->size();
        }
        return {entry.file, entry.size};
      }
      closed.push_back(std::move(it->second.file));
      entries_.erase(it);
    }
  }
  closed.clear();
  std::shared_ptr<File> file;
  try {
    file = File::open(path, write, direct);
  } catch (const std::system_error& error) {
    const int code = error.code().value();
    if (code != EMFILE && code != ENFILE) throw;
    close_idle(std::chrono::milliseconds(0));  // What is kept open for speed is in the way.
    file = File::open(path, write, direct);
  }
  const std::lock_guard lock(mutex_);
  if (entries_.size() >= kKeptOpen) {
    const auto oldest = std::min_element(
        entries_.begin(), entries_.end(),
        [](const auto& a, const auto& b) { return a.second.used < b.second.used; });
    closed.push_back(std::move(oldest->second.file));
    entries_.erase(oldest);
  }
  const std::int64_t size = file->size();
  entries_[key] = {file, std::chrono::steady_clock::now(), looked_up, size};
  return {file, size};
}

void FileCache::forget(const File& file) {
  std::shared_ptr<File> closed;
  const std::lock_guard lock(mutex_);
  for (auto it = entries_.begin(); it != entries_.end(); ++it) {
    if (it->second.file.get() == &file) {
      closed = std::move(it->second.file);
      entries_.erase(it);
      return;
    }
  }
}

bool FileCache::close_idle(std::chrono::milliseconds idle) {
  std::vector<std::shared_ptr<File>> closed;
  const std::lock_guard lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  for (auto it = entries_.begin(); it != entries_.end();) {
    if (it->second.file.use_count() == 1 && now - it->second.used >= idle) {
      closed.push_back(std::move(it->second.file));
      it = entries_.erase(it);
    } else {
      ++it;
    }
  }
  return !entries_.empty();
}

std::int64_t async_io_file_size(const std::string& path) {
  bool direct = false;
  struct stat now {};
  if (::stat(path.c_str(), &now) != 0) {
    throw io_error(errno, "cannot find " + quoted(path));
  }
  if (!S_ISBLK(now.st_mode)) return now.st_size;
  const int fd = open_file(path, false, direct);
  if (fd < 0) throw io_error(errno, "cannot open " + quoted(path) + " to read");
  const std::int64_t size = size_of(fd, now.st_mode);
  ::close(fd);
  return size;
}

}  // namespace ds

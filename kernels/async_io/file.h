#pragma once

// Open files, and the ones kept open for the next operation.

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <unordered_map>

namespace ds {

// One file open for reading or for writing, past the page cache if it can be. Any thread.
class File {
 public:
  // Throw std::system_error; the text has the path. `fd` is duplicated.
  static std::shared_ptr<File> open(const std::string& path, bool write, bool direct);
  static std::shared_ptr<File> of_descriptor(int fd, bool write, bool direct);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const std::string& name() const { return name_; }
  bool direct() const { return direct_.load(std::memory_order_relaxed); }
  // Offsets and lengths of direct operations are multiples of it: at least a page, so that what
  // goes through the page cache and what goes past it never share a page.
  std::int64_t align() const { return align_; }
  std::int64_t memory_align() const { return memory_align_; }

  int direct_fd() const { return fd_; }
  // Through the page cache; opened when it is first asked for.
  int buffered_fd();
  // The file system took O_DIRECT and then refused a read or write: not again.
  void give_up_direct() { direct_.store(false, std::memory_order_relaxed); }

  // Now; the largest number for what has no size.
  std::int64_t size() const;
  // Reserves the room behind the end, because writes that make a file longer run one after the
  // other. Throws ENOSPC; a file system that cannot do it is no failure.
  void reserve(std::int64_t begin, std::int64_t end);

  bool is(dev_t device, ino_t inode) const { return device == device_ && inode == inode_; }

 private:
  File(std::string name, int fd, bool write, bool direct);

  std::string name_;
  int fd_;
  bool write_;
  std::atomic<bool> direct_;
  std::int64_t align_ = 4096;
  std::int64_t memory_align_ = 512;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  mode_t mode_ = 0;
  std::mutex mutex_;
  std::atomic<int> buffered_fd_{-1};
};

struct FoundFile {
  std::shared_ptr<File> file;
  std::int64_t size;  // When the name was looked up.
};

// Any thread.
class FileCache {
 public:
  // When an operation is submitted: which look-ups of a name are late enough for it.
  std::uint64_t ask() { return asked_.fetch_add(1, std::memory_order_acq_rel) + 1; }
  // The path is looked up for all operations on it that were submitted before: what the name was at
  // some moment between the beginning and the end of an operation is right for it. An entry counts
  // only if it is the file of that name then. It cannot be another file with the same number,
  // because as long as we have it open its number is taken.
  FoundFile get(const std::string& path, bool write, bool direct, std::uint64_t asked);
  void forget(const File& file);
  // Closes what was not used for `idle` (and is not in use); true if something is left.
  bool close_idle(std::chrono::milliseconds idle);

 private:
  struct Entry {
    std::shared_ptr<File> file;
    std::chrono::steady_clock::time_point used;
    std::uint64_t looked_up;  // Good for what asked up to then.
    std::int64_t size;
  };

  std::atomic<std::uint64_t> asked_{0};
  // Calls the destructors of files without the lock: closing may take long.
  std::mutex mutex_;
  std::unordered_map<std::string, Entry> entries_;  // "r" or "w" and the path.
};

std::system_error io_error(int code, const std::string& what);

}  // namespace ds

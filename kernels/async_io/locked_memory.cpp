#include "locked_memory.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <fstream>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <system_error>

#include "async_io.h"

namespace ds {
namespace {

struct Mapping {
  std::size_t size;
  std::uint64_t id;  // 0: no longer locked.
};

struct Registry {
  std::shared_mutex mutex;
  std::map<char*, Mapping> mappings;  // By address.
  std::uint64_t next_id = 1;
  std::atomic<std::uint64_t> epoch{0};
};

// Never destroyed: a tensor may outlive all statics.
Registry& registry() {
  static Registry* const all = new Registry;
  return *all;
}

constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::string bytes_text(rlim_t bytes) {
  return bytes == RLIM_INFINITY ? "unlimited" : std::to_string(bytes) + " bytes";
}

// What /proc says is locked, for the text of an error.
std::string locked_already() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmLck:", 0) == 0) {
      const std::size_t digit = line.find_first_of("0123456789");
      if (digit != std::string::npos) return line.substr(digit);
    }
  }
  return "an unknown amount";
}

}  // namespace

std::uint64_t locked_memory_epoch() {
  return registry().epoch.load(std::memory_order_acquire);
}

LockedPiece find_locked(const void* start, std::size_t size) {
  Registry& all = registry();
  const std::shared_lock lock(all.mutex);
  auto* const first = const_cast<char*>(static_cast<const char*>(start));
  auto it = all.mappings.upper_bound(first);
  if (it == all.mappings.begin()) return {};
  --it;
  const auto before = static_cast<std::size_t>(first - it->first);
  if (it->second.id == 0 || before > it->second.size || size > it->second.size - before) return {};
  return {it->second.id, it->first, it->second.size};
}

bool is_locked_piece(std::uint64_t id) {
  Registry& all = registry();
  const std::shared_lock lock(all.mutex);
  for (const auto& [start, mapping] : all.mappings) {
    if (mapping.id == id) return true;
  }
  return false;
}

void* async_io_lock_memory(std::int64_t size) {
  if (size < 0) throw std::invalid_argument("async_io: the size of locked memory is negative");
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const auto wanted = static_cast<std::size_t>(size == 0 ? 1 : size);
  const std::size_t bytes = (wanted + page - 1) / page * page;
  void* const start =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) {
    throw std::system_error(errno, std::generic_category(),
                            "async_io: cannot map " + std::to_string(bytes) + " bytes");
  }
  // Fewer pieces for the device to be told of. Only advice: a kernel without it says no.
  if (bytes >= kHugePage) madvise(start, bytes, MADV_HUGEPAGE);
  if (mlock(start, bytes) != 0) {
    const int code = errno;
    munmap(start, bytes);
    rlimit limit{};
    getrlimit(RLIMIT_MEMLOCK, &limit);
    throw std::system_error(
        code == EPERM || code == EAGAIN ? ENOMEM : code, std::generic_category(),
        "async_io: cannot lock " + std::to_string(bytes) +
            " bytes of memory: the limit RLIMIT_MEMLOCK is " + bytes_text(limit.rlim_cur) +
            " (hard limit " + bytes_text(limit.rlim_max) + "), " + locked_already() +
            " are locked already; raise it with ulimit -l or LimitMEMLOCK=");
  }
  Registry& all = registry();
  const std::unique_lock lock(all.mutex);
  all.mappings[static_cast<char*>(start)] = {bytes, all.next_id++};
  return start;
}

bool async_io_unlock_memory(void* start) {
  Registry& all = registry();
  const std::unique_lock lock(all.mutex);
  const auto it = all.mappings.find(static_cast<char*>(start));
  if (it == all.mappings.end() || it->second.id == 0) return false;
  munlock(start, it->second.size);
  it->second.id = 0;
  all.epoch.fetch_add(1, std::memory_order_release);
  return true;
}

void async_io_unmap_memory(void* start) {
  Registry& all = registry();
  const std::unique_lock lock(all.mutex);
  const auto it = all.mappings.find(static_cast<char*>(start));
  if (it == all.mappings.end()) return;
  if (it->second.id != 0) all.epoch.fetch_add(1, std::memory_order_release);
  munmap(start, it->second.size);
  all.mappings.erase(it);
}

bool async_io_is_locked(const void* start, std::int64_t size) {
  return size >= 0 && find_locked(start, static_cast<std::size_t>(size)).id != 0;
}

}  // namespace ds

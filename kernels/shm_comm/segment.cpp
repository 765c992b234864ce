#include "segment.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "fork_generation.h"

namespace ds {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::uint32_t kReady = 0xD5C0331Au;  // The layout below; another layout, another number.
constexpr std::uint32_t kComing = 1, kJoined = 2, kLeft = 3;
constexpr std::uint32_t kDied = 1, kClosed = 2, kLate = 3, kGaveUp = 4;

// A rank that comes a little later than another is met awake: a sleep and a wake cost 5 µs and up.
// Where there are more ranks than cores, whoever waits is in the way of the one waited for.
constexpr int kSpins = 4000;  // Some 40 µs.
constexpr int kYields = 20;

// A core that is given away comes back after a turn of all others: at once if they are ranks that
// wait as well, after milliseconds if other work has the cores. A sleeper is given a core again
// before those who never left it, so in such company a rank sleeps, for so many waits until it
// tries again.
constexpr std::chrono::microseconds kTurnOfOthers(500);
constexpr int kWaitsInCompany = 256;
constexpr int kSpinsInCompany = 200;  // Some 2 µs: more of them was slower beside other work.

[[noreturn]] void fail_with(int code, const std::string& text) {
  throw std::system_error(code, std::generic_category(), text);
}

std::string prefix_of_user() {
  return "ds-shm-" + std::to_string(geteuid()) + "-";
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t seen, milliseconds limit) {
  timespec time{};
  time.tv_sec = static_cast<time_t>(limit.count() / 1000);
  time.tv_nsec = static_cast<long>(limit.count() % 1000 * 1'000'000);
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, seen, &time, nullptr, 0);
}

void futex_wake_all(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr,
          0);
}

int usable_cores() {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) == 0) return CPU_COUNT(&cores);
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

std::string shm_host() {
  char boot[64] = "";
  const Descriptor fd(open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  const ssize_t got = fd.get() < 0 ? 0 : read(fd.get(), boot, sizeof boot - 1);
  struct stat info {};
  std::string host(boot, static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  host.erase(std::find(host.begin(), host.end(), '\n'), host.end());
  if (host.empty() || stat("/dev/shm", &info) != 0) {
    return "nowhere-" + host + "-" + std::to_string(getpid());
  }
  return host + "-" + std::to_string(info.st_dev) + "-" + std::to_string(geteuid());
}

struct alignas(128) ShmSegment::Member {
  std::atomic<std::uint32_t> state;
  // The last phase that it has come to; behind `arrived`, for finding out who is missing.
  std::atomic<std::uint32_t> progress;
  ProcessIdentity process;
};

struct ShmSegment::Header {
  std::atomic<std::uint32_t> ready;
  std::uint32_t size;
  std::int64_t slot_bytes;
  ProcessIdentity creator;
  std::atomic<std::uint32_t> joined;
  std::atomic<std::uint32_t> failure;  // kind << 24 | rank, once something is wrong for good.
  alignas(128) std::atomic<std::uint32_t> arrived;
  std::atomic<std::uint32_t> sleepers;

  static std::size_t bytes(int size, std::int64_t slot_bytes) {
    const auto ranks = static_cast<std::size_t>(size);
    return sizeof(Header) + ranks * sizeof(Member) +
           ranks * 2 * static_cast<std::size_t>(kCallBytes + slot_bytes);
  }

  enum class Life { unwritten, alive, over };

  // `over`: the group can never come together, since its rank 0 has ended; or it did already.
  static Life life_of(int fd) {
    struct stat info {};
    if (fstat(fd, &info) != 0) return Life::alive;
    if (info.st_nlink == 0) return Life::over;
    if (info.st_size < static_cast<off_t>(sizeof(Header))) return Life::unwritten;
    void* const memory = mmap(nullptr, sizeof(Header), PROT_READ, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) return Life::alive;
    const auto& header = *static_cast<const Header*>(memory);
    Life life = Life::unwritten;
    if (header.ready.load(std::memory_order_acquire) == kReady) {
      life = has_ended(header.creator) ? Life::over : Life::alive;
    }
    munmap(memory, sizeof(Header));
    return life;
  }

  // Groups of this user all of whose ranks were killed before they had found each other.
  static void remove_abandoned() {
    DIR* const folder = opendir("/dev/shm");
    if (folder == nullptr) return;
    const std::string prefix = prefix_of_user();
    while (const dirent* const entry = readdir(folder)) {
      if (std::strncmp(entry->d_name, prefix.c_str(), prefix.size()) != 0) continue;
      const std::string path = std::string("/") + entry->d_name;
      const Descriptor fd(shm_open(path.c_str(), O_RDONLY, 0));
      struct stat info {};
      if (fd.get() < 0 || fstat(fd.get(), &info) != 0 || info.st_uid != geteuid()) continue;
      const Life life = life_of(fd.get());
      // One without a header may be of a rank 0 that is about to write it.
      const bool old = time(nullptr) - info.st_mtime > 60;
      if (life == Life::over || (life == Life::unwritten && old)) shm_unlink(path.c_str());
    }
    closedir(folder);
  }
};

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

ShmSegment::ShmSegment(Options options)
    : options_(std::move(options)),
      path_("/" + prefix_of_user() + options_.name),
      generation_(fork_generation()) {
  const Clock::time_point deadline = Clock::now() + options_.timeout;
  if (options_.rank == 0) {
    create();
  } else {
    attach(deadline);
  }
  try {
    join();
    spins_ = options_.size <= usable_cores() ? kSpins : 0;
    arrive_and_wait("open");
  } catch (...) {
    fail(kGaveUp, rank());  // For those who wait for us.
    unlink_if_ours();
    munmap(memory_, bytes_);
    throw;
  }
}

ShmSegment::~ShmSegment() {
  if (generation_ == fork_generation()) {
    member(rank()).state.store(kLeft);
    futex_wake_all(header_->arrived);
  }
  munmap(memory_, bytes_);
}

void ShmSegment::create() {
  Header::remove_abandoned();
  int fd;
  while ((fd = shm_open(path_.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600)) < 0) {
    if (errno != EEXIST) {
      refuse("open", errno, "cannot make the shared memory " + path_);
    }
    const Descriptor old(shm_open(path_.c_str(), O_RDONLY, 0));
    if (old.get() < 0) {
      if (errno == ENOENT) continue;
      refuse("open", errno,
             "cannot look at the shared memory " + path_ + ", which is there already");
    }
    Header::Life life = Header::life_of(old.get());
    for (int i = 0; i < 1000 && life == Header::Life::unwritten; ++i) {
      std::this_thread::sleep_for(milliseconds(1));
      life = Header::life_of(old.get());
    }
    if (life == Header::Life::alive) {
      refuse("open", EEXIST,
             "another group of this name is coming together; each needs a name of its own");
    }
    if (shm_unlink(path_.c_str()) != 0 && errno != ENOENT) {
      refuse("open", errno, "cannot remove what an earlier group left, " + path_);
    }
  }
  const Descriptor owned(fd);
  const std::size_t bytes = Header::bytes(options_.size, options_.slot_bytes);
  // Reserved now: without room, the first write would be a SIGBUS later.
  int code;
  do {
    code = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  } while (code == EINTR);
  if (code == EOPNOTSUPP || code == EINVAL) {
    code = ftruncate(fd, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  }
  if (code == 0 && fchmod(fd, 0600) != 0) code = errno;  // Whatever the umask took away.
  if (code != 0) {
    shm_unlink(path_.c_str());
    refuse("open", code,
           "cannot have " + std::to_string(bytes) +
               " bytes of shared memory; make /dev/shm larger (docker: --shm-size) or the group's "
               "slots smaller");
  }
  try {
    map(fd, bytes);
  } catch (...) {
    shm_unlink(path_.c_str());
    throw;
  }
  new (header_) Header{};
  header_->size = static_cast<std::uint32_t>(options_.size);
  header_->slot_bytes = options_.slot_bytes;
  header_->creator = this_process();
  for (int r = 0; r < options_.size; ++r) new (&member(r)) Member{};
  header_->ready.store(kReady, std::memory_order_release);
}

void ShmSegment::attach(Clock::time_point deadline) {
  milliseconds pause(1);
  for (;; std::this_thread::sleep_for(pause), pause = std::min(pause * 2, milliseconds(20))) {
    if (Clock::now() > deadline) {
      refuse("open", ETIMEDOUT,
             "rank 0 has not come within " + std::to_string(options_.timeout.count()) + " ms");
    }
    const Descriptor fd(shm_open(path_.c_str(), O_RDWR, 0));
    if (fd.get() < 0) {
      if (errno == ENOENT) continue;
      refuse("open", errno, "cannot open the shared memory " + path_);
    }
    struct stat info {};
    if (fstat(fd.get(), &info) != 0) refuse("open", errno, "cannot look at " + path_);
    if (info.st_uid != geteuid() || (info.st_mode & 077) != 0) {
      refuse("open", EPERM, "the shared memory " + path_ + " is not this user's alone");
    }
    if (info.st_size < static_cast<off_t>(sizeof(Header))) continue;
    map(fd.get(), static_cast<std::size_t>(info.st_size));
    // Not yet written, or of a run that was killed: rank 0 will write it, or replace it.
    if (header_->ready.load(std::memory_order_acquire) == kReady && !has_ended(header_->creator)) {
      const auto size = static_cast<int>(header_->size);
      const bool fits = size == options_.size && Header::bytes(size, header_->slot_bytes) == bytes_;
      if (fits) {
        slot_bytes_ = header_->slot_bytes;
        return;
      }
      if (rank() < size) fail(kGaveUp, rank());
      munmap(memory_, bytes_);
      refuse("open", EPROTO,
             "rank 0 opened it with " + std::to_string(size) + " ranks, or by another version");
    }
    munmap(memory_, bytes_);
  }
}

void ShmSegment::map(int fd, std::size_t bytes) {
  memory_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory_ == MAP_FAILED) {
    memory_ = nullptr;
    refuse("open", errno, "cannot map the shared memory " + path_);
  }
  bytes_ = bytes;
  header_ = static_cast<Header*>(memory_);
  slots_ = static_cast<char*>(memory_) + sizeof(Header) +
           static_cast<std::size_t>(options_.size) * sizeof(Member);
  slot_bytes_ = options_.slot_bytes;
}

void ShmSegment::join() {
  Member& me = member(rank());
  std::uint32_t nobody = 0;
  if (!me.state.compare_exchange_strong(nobody, kComing)) {
    refuse("open", EEXIST, "there is a rank of this number already");
  }
  me.process = this_process();
  me.state.store(kJoined);
  if (header_->joined.fetch_add(1) + 1 == header_->size) shm_unlink(path_.c_str());
}

// Not what a later run has made under this name.
void ShmSegment::unlink_if_ours() const {
  const Descriptor fd(shm_open(path_.c_str(), O_RDONLY, 0));
  if (fd.get() < 0) return;
  void* const memory = mmap(nullptr, sizeof(Header), PROT_READ, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return;
  const ProcessIdentity theirs = static_cast<const Header*>(memory)->creator;
  munmap(memory, sizeof(Header));
  const ProcessIdentity& ours = header_->creator;
  if (theirs.pid == ours.pid && theirs.start_time == ours.start_time) shm_unlink(path_.c_str());
}

ShmSegment::Member& ShmSegment::member(int rank) const {
  return reinterpret_cast<Member*>(header_ + 1)[rank];
}

void ShmSegment::check_usable(const char* what) const {
  if (generation_ != fork_generation()) {
    refuse(what, EINVAL, "the group was opened before fork(); a child opens one of its own");
  }
  if (header_->failure.load(std::memory_order_relaxed) != 0) throw_failure(what);
}

bool ShmSegment::reached(std::uint32_t target) const {
  return static_cast<std::int32_t>(header_->arrived.load(std::memory_order_acquire) - target) >= 0;
}

void ShmSegment::arrive_and_wait(const char* what) {
  ++phase_;
  const std::uint32_t target = phase_ * static_cast<std::uint32_t>(options_.size);
  const std::uint32_t arrived = header_->arrived.fetch_add(1) + 1;
  member(rank()).progress.store(phase_, std::memory_order_release);
  if (arrived == target) {
    if (header_->sleepers.load() != 0) futex_wake_all(header_->arrived);
    return;
  }
  const bool alone = company_ == 0;
  if (!alone) --company_;
  for (int i = 0; i < (alone ? spins_ : std::min(spins_, kSpinsInCompany)); ++i) {
    if (reached(target)) return;
    relax();
  }
  for (int i = 0; alone && i < kYields; ++i) {
    if (reached(target)) return;
    const Clock::time_point before = Clock::now();
    sched_yield();
    if (Clock::now() - before > kTurnOfOthers) {
      company_ = kWaitsInCompany;
      break;
    }
  }
  if (reached(target)) return;
  ++sleeps_;
  sleep_until(target, what);
}

void ShmSegment::sleep_until(std::uint32_t target, const char* what) {
  const Clock::time_point deadline = Clock::now() + options_.timeout;
  milliseconds slice(5);
  Clock::time_point look = Clock::now() + slice;
  for (;;) {
    header_->sleepers.fetch_add(1);
    const std::uint32_t seen = header_->arrived.load();
    if (static_cast<std::int32_t>(seen - target) < 0 && header_->failure.load() == 0) {
      futex_wait(header_->arrived, seen, slice);
    }
    header_->sleepers.fetch_sub(1);
    if (reached(target)) return;
    if (header_->failure.load() != 0) throw_failure(what);
    const Clock::time_point now = Clock::now();
    const bool thorough = now >= look;
    const int lost = lost_rank(thorough);
    if (lost >= 0 || now >= deadline) {
      if (reached(target)) return;  // Who has come and then ended is not missing.
      if (lost >= 0) {
        fail(member(lost).state.load() == kLeft ? kClosed : kDied, lost);
      } else {
        fail(kLate, missing_rank(0));
      }
      throw_failure(what);
    }
    if (thorough) {
      slice = std::min(slice * 2, milliseconds(160));
      look = now + slice;
    }
  }
}

// The first from `from` on that has not come to this phase, or size().
int ShmSegment::missing_rank(int from) const {
  while (from < size() && static_cast<std::int32_t>(member(from).progress.load() - phase_) >= 0) {
    ++from;
  }
  return from;
}

int ShmSegment::lost_rank(bool thorough) const {
  for (int r = missing_rank(0); r < size(); r = missing_rank(r + 1)) {
    const Member& other = member(r);
    const std::uint32_t state = other.state.load();
    if (state == kLeft) return r;
    if (thorough && state == kJoined && has_ended(other.process)) return r;
  }
  return -1;
}

void ShmSegment::fail(std::uint32_t kind, int rank) {
  std::uint32_t none = 0;
  header_->failure.compare_exchange_strong(none, kind << 24 | static_cast<std::uint32_t>(rank));
  futex_wake_all(header_->arrived);
}

void ShmSegment::throw_failure(const char* what) const {
  const std::uint32_t failure = header_->failure.load();
  const auto rank = static_cast<int>(failure & 0xffffff);
  std::string who = "rank " + std::to_string(rank);
  if (rank < size() && member(rank).state.load() >= kJoined) {
    who += " (process " + std::to_string(member(rank).process.pid) + ")";
  }
  switch (failure >> 24) {
    case kDied:
      refuse(what, ECONNRESET, who + " has died");
    case kClosed:
      refuse(what, ECONNRESET, who + " has closed the group");
    case kGaveUp:
      refuse(what, ECONNRESET, who + " could not open the group");
    default:
      refuse(what, ETIMEDOUT,
             who + " has not come within " + std::to_string(options_.timeout.count()) + " ms");
  }
}

void ShmSegment::refuse(const char* what, int code, const std::string& why) const {
  fail_with(code, std::string("shm_comm ") + what + ": group " + options_.name + ", rank " +
                      std::to_string(options_.rank) + " of " + std::to_string(options_.size) +
                      ": " + why);
}

}  // namespace ds

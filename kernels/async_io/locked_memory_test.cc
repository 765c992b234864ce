#include <sys/mman.h>
#include <sys/resource.h>

#include <fstream>

#include "io_test.h"

namespace ds {
namespace {

long locked_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmLck:", 0) == 0) return std::stol(line.substr(6));
  }
  return -1;
}

// The sanitizers make mlock() do nothing.
#if defined(__has_feature)
#define DS_SANITIZED __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DS_SANITIZED 1
#else
#define DS_SANITIZED 0
#endif
#if DS_SANITIZED
#define DS_SKIP_WITHOUT_MLOCK() GTEST_SKIP() << "mlock() does nothing under a sanitizer"
#else
#define DS_SKIP_WITHOUT_MLOCK() static_cast<void>(0)
#endif

// Why this process may not lock so much, or nothing. Asks the kernel and not what is tested.
std::string why_not_locked(std::size_t bytes) {
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return std::strerror(errno);
  const std::string why = mlock(memory, bytes) == 0 ? "" : std::strerror(errno);
  munmap(memory, bytes);
  return why;
}

#define DS_SKIP_UNLESS_LOCKABLE(bytes)                                     \
  if (const std::string why_not = why_not_locked(bytes); !why_not.empty()) \
  GTEST_SKIP() << "mlock of " << (bytes) << " bytes: " << why_not

TEST(LockedMemory, Is_locked_until_it_is_unlocked_and_readable_until_it_is_unmapped) {
  DS_SKIP_WITHOUT_MLOCK();
  DS_SKIP_UNLESS_LOCKABLE(1'003'520);
  const long before = locked_kib();
  auto* const memory = static_cast<char*>(async_io_lock_memory(1'000'000));
  EXPECT_EQ(locked_kib() - before, 980);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % 4096, 0u);
  EXPECT_TRUE(async_io_is_locked(memory, 1'000'000));
  EXPECT_TRUE(async_io_is_locked(memory + 500, 10));
  EXPECT_FALSE(async_io_is_locked(memory + 500, 2'000'000));
  EXPECT_FALSE(async_io_is_locked(&before, 1));
  memory[999'999] = 7;
  EXPECT_TRUE(async_io_unlock_memory(memory));
  EXPECT_FALSE(async_io_unlock_memory(memory));
  EXPECT_FALSE(async_io_is_locked(memory, 1));
  EXPECT_EQ(locked_kib(), before);
  EXPECT_EQ(memory[999'999], 7);
  async_io_unmap_memory(memory);
  EXPECT_THROW(async_io_lock_memory(-1), std::invalid_argument);
}

TEST(LockedMemory, Beyond_the_limit_is_ENOMEM_with_the_limit_and_what_is_locked) {
  DS_SKIP_WITHOUT_MLOCK();
  rlimit now{};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &now), 0);
  const rlim_t bytes = std::min<rlim_t>(now.rlim_max, 1 << 20);
  if (bytes < 256 << 10) GTEST_SKIP() << "the hard limit RLIMIT_MEMLOCK is only " << bytes;
  constexpr int kStaysRoot = 10, kNoLimit = 11;
  const int result = in_child([&] {
    const rlimit limit{bytes, bytes};
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) return 2;
    // Root may lock what it likes; somebody else may not, unless they were given the right.
    if (geteuid() == 0 && setuid(65'534) != 0) return kStaysRoot;
    if (why_not_locked(bytes + 4096).empty()) return kNoLimit;
    async_io_lock_memory(200'000);
    const Thrown thrown =
        thrown_by([&] { async_io_lock_memory(static_cast<std::int64_t>(bytes)); });
    const std::string text = "RLIMIT_MEMLOCK is " + std::to_string(bytes) + " bytes";
    const bool right = thrown.code == ENOMEM && thrown.text.find(text) != std::string::npos &&
                       thrown.text.find("196 kB are locked already") != std::string::npos;
    if (!right) std::fprintf(stderr, "%d %s\n", thrown.code, thrown.text.c_str());
    return right ? 0 : 1;
  });
  if (result == kStaysRoot) GTEST_SKIP() << "root cannot become another user here";
  if (result == kNoLimit) GTEST_SKIP() << "RLIMIT_MEMLOCK does not count for this process";
  EXPECT_EQ(result, 0);
}

class LockedMemoryIo : public EachEngine {};
DS_FOR_EACH_ENGINE(LockedMemoryIo);

// The kernel keeps pages of locked memory mapped; at the same address later it must not use them.
TEST_P(LockedMemoryIo, Is_right_when_memory_is_freed_and_locked_again_at_the_same_address) {
  DS_SKIP_UNLESS_LOCKABLE(1 << 20);
  const Folder disk;
  const AsyncIoPtr io = open(65'536, 4);
  constexpr std::size_t kSize = 1 << 20;
  std::size_t same_address = 0;
  void* last = nullptr;
  for (unsigned round = 0; round < 30; ++round) {
    auto* const memory = static_cast<unsigned char*>(async_io_lock_memory(kSize));
    same_address += memory == last;
    last = memory;
    const Bytes source = random_bytes(kSize, round);
    std::copy(source.begin(), source.end(), memory);
    async_io_submit(*io, writing(disk.file("f"), memory, kSize));
    ASSERT_EQ(async_io_wait(*io), 1);
    ASSERT_EQ(plain_read(disk.file("f")), source) << "round " << round;
    std::fill(memory, memory + kSize, 0);
    async_io_submit(*io, reading(disk.file("f"), memory + 4096, kSize - 8192, 4096));
    ASSERT_EQ(async_io_wait(*io), 1);
    ASSERT_TRUE(std::equal(memory + 4096, memory + kSize - 4096, source.begin() + 4096));
    async_io_unmap_memory(memory);
  }
  EXPECT_GT(same_address, 0u) << "the case that this is about did not come up";
}

TEST_P(LockedMemoryIo, Is_right_for_more_pieces_than_the_kernel_has_room_for) {
  DS_SKIP_UNLESS_LOCKABLE(100 * 8192);
  const Folder disk;
  const AsyncIoPtr io = open(65'536, 4);
  std::vector<void*> pieces;
  for (unsigned i = 0; i < 100; ++i) {
    pieces.push_back(async_io_lock_memory(8192));
    const Bytes source = random_bytes(8192, i);
    std::memcpy(pieces.back(), source.data(), source.size());
    async_io_submit(*io, writing(disk.file("f"), pieces.back(), 8192, 8192 * i));
  }
  EXPECT_EQ(async_io_wait(*io), 100);
  const Bytes file = plain_read(disk.file("f"));
  for (unsigned i = 0; i < 100; ++i) {
    EXPECT_EQ(std::memcmp(file.data() + 8192 * i, pieces[i], 8192), 0);
    async_io_unmap_memory(pieces[i]);
  }
}

}  // namespace
}  // namespace ds

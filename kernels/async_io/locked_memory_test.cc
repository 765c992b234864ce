#include <sys/resource.h>
#include <sys/wait.h>

#include <fstream>

#include "io_test.h"

namespace ds {
namespace {

using testing::AllOf;
using testing::HasSubstr;

long locked_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmLck:", 0) == 0) return std::stol(line.substr(6));
  }
  return -1;
}

// The sanitizers make mlock() do nothing.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DS_SKIP_WITHOUT_MLOCK() GTEST_SKIP() << "mlock() does nothing under a sanitizer"
#else
#define DS_SKIP_WITHOUT_MLOCK() static_cast<void>(0)
#endif

TEST(LockedMemory, Is_locked_until_it_is_unlocked_and_readable_until_it_is_unmapped) {
  DS_SKIP_WITHOUT_MLOCK();
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
  const pid_t child = fork();
  if (child == 0) {
    // Root may lock what it likes; somebody else may not.
    const rlimit limit{1 << 20, 1 << 20};
    setrlimit(RLIMIT_MEMLOCK, &limit);
    if (geteuid() == 0 && setuid(65'534) != 0) _exit(3);
    async_io_lock_memory(200'000);
    const Thrown thrown = thrown_by([] { async_io_lock_memory(1 << 20); });
    const bool right = thrown.code == ENOMEM &&
                       thrown.text.find("RLIMIT_MEMLOCK is 1048576 bytes") != std::string::npos &&
                       thrown.text.find("196 kB are locked already") != std::string::npos;
    if (!right) std::fprintf(stderr, "%d %s\n", thrown.code, thrown.text.c_str());
    _exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

class LockedMemoryIo : public EachEngine {};
DS_FOR_EACH_ENGINE(LockedMemoryIo);

// The kernel keeps pages of locked memory mapped; at the same address later it must not use them.
TEST_P(LockedMemoryIo, Is_right_when_memory_is_freed_and_locked_again_at_the_same_address) {
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

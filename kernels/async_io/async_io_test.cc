#include "io_test.h"

#include <atomic>
#include <thread>

namespace ds {
namespace {

using testing::HasSubstr;

class AsyncIoTest : public EachEngine {};
DS_FOR_EACH_ENGINE(AsyncIoTest);

// Writes and reads of random ranges, from and to any address, many at a time, against an image in
// memory and plain reads of the file.
void random_operations(AsyncIo& io, const std::string& path, unsigned seed, std::int64_t longest) {
  std::mt19937 random(seed);
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  const auto length = [&] { return below(3) == 0 ? below(600) : below(longest); };
  Bytes image;
  for (int round = 0; round < 8; ++round) {
    // Ranges that lie next to each other, written at the same time, in pieces of any length.
    const Bytes source = random_bytes(static_cast<std::size_t>(length() + 16), seed + 99);
    const auto shift = static_cast<std::size_t>(below(16));
    const std::int64_t offset = below(2) ? below(longest) : below(8) * 4096;
    const auto total = static_cast<std::int64_t>(source.size() - shift);
    image.resize(std::max(image.size(), static_cast<std::size_t>(offset + total)));
    std::copy(source.begin() + static_cast<std::ptrdiff_t>(shift), source.end(),
              image.begin() + offset);
    for (std::int64_t done = 0; done < total;) {
      const std::int64_t piece = std::min(total - done, 1 + length());
      async_io_submit(io, writing(path, source.data() + shift + done,
                                  static_cast<std::size_t>(piece), offset + done));
      done += piece;
    }
    ASSERT_GT(async_io_wait(io), 0);
    ASSERT_EQ(plain_read(path), image) << "after round " << round;

    const auto size = static_cast<std::int64_t>(image.size());
    std::vector<Bytes> got;
    std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
    for (int i = 0; i < 8; ++i) {
      const std::int64_t begin = below(size);
      ranges.emplace_back(begin, below(size - begin + 1));
      got.emplace_back(static_cast<std::size_t>(ranges.back().second + 16), 0xEE);
    }
    for (std::size_t i = 0; i < got.size(); ++i) {
      const auto [begin, count] = ranges[i];
      async_io_submit(io, reading(path, got[i].data() + i, static_cast<std::size_t>(count), begin));
    }
    ASSERT_EQ(async_io_wait(io), 8);
    for (std::size_t i = 0; i < got.size(); ++i) {
      const auto [begin, count] = ranges[i];
      const auto first = got[i].begin() + static_cast<std::ptrdiff_t>(i);
      ASSERT_TRUE(std::equal(first, first + count, image.begin() + begin))
          << count << " bytes at " << begin;
      ASSERT_TRUE(std::all_of(got[i].begin(), first, [](auto b) { return b == 0xEE; }));
      ASSERT_TRUE(std::all_of(first + count, got[i].end(), [](auto b) { return b == 0xEE; }));
    }
  }
}

TEST_P(AsyncIoTest, Random_ranges_addresses_and_block_sizes_give_what_plain_reads_give) {
  const Folder disk;
  unsigned seed = 0;
  for (std::int64_t block : {1, 4096, 12'288, 65'536, 1 << 20}) {
    for (int depth : {1, 128}) {
      for (int threads : {1, 3}) {
        const AsyncIoPtr io = open(block, depth, threads);
        random_operations(*io, disk.file(std::to_string(seed)), seed, 40'000);
        ASSERT_FALSE(HasFatalFailure())
            << "block " << block << ", depth " << depth << ", threads " << threads;
        ++seed;
      }
    }
  }
}

TEST_P(AsyncIoTest, Long_ranges_are_cut_and_shared_out_without_a_seam) {
  const Folder disk;
  for (int threads : {1, 4}) {
    const AsyncIoPtr io = open(1 << 16, 4, threads);
    random_operations(*io, disk.file(std::to_string(threads)), 5, 5'000'000);
  }
}

TEST_P(AsyncIoTest, Works_on_a_file_system_without_direct_operations_and_when_they_are_not_wanted) {
  const Folder memory("/dev/shm");
  random_operations(*open(8192, 4, 2), memory.file("a"), 1, 50'000);
  const Folder disk;
  random_operations(*open(8192, 4, 2, /*direct=*/false), disk.file("a"), 2, 50'000);
}

TEST_P(AsyncIoTest, Synchronous_operations_agree_with_plain_reads_whether_short_or_long) {
  const Folder disk;
  const AsyncIoPtr io = open(16'384, 4, 2);
  for (std::size_t size : {0, 1, 511, 512, 513, 4095, 4096, 4097, 16'384, 16'385, 1'000'003}) {
    const std::string path = disk.file(std::to_string(size));
    const Bytes source = random_bytes(size, static_cast<unsigned>(size));
    async_io_run(*io, writing(path, source.data(), size));
    EXPECT_EQ(plain_read(path), source);
    Bytes got(size);
    async_io_run(*io, reading(path, got.data(), size));
    EXPECT_EQ(got, source);
  }
}

TEST_P(AsyncIoTest, A_synchronous_operation_leaves_the_others_to_wait) {
  const Folder disk;
  const AsyncIoPtr io = open();
  const Bytes source = random_bytes(100'000, 3);
  for (int i = 0; i < 3; ++i) {
    async_io_submit(*io, writing(disk.file(std::to_string(i)), source.data(), source.size()));
  }
  async_io_run(*io, writing(disk.file("now"), source.data(), source.size()));
  EXPECT_EQ(plain_read(disk.file("now")), source);
  EXPECT_EQ(async_io_wait(*io), 3);
  EXPECT_EQ(async_io_wait(*io), 0);
}

TEST_P(AsyncIoTest, A_write_keeps_what_lies_around_it_and_behind_it) {
  const Folder disk;
  const std::string path = disk.file("f");
  Bytes expected = random_bytes(300'000, 1);
  plain_write(path, expected);
  const AsyncIoPtr io = open(65'536, 4);
  const Bytes source = random_bytes(150'000, 2);
  async_io_run(*io, writing(path, source.data(), source.size(), 777));
  std::copy(source.begin(), source.end(), expected.begin() + 777);
  EXPECT_EQ(plain_read(path), expected);
}

TEST_P(AsyncIoTest, A_write_behind_the_end_leaves_a_hole_of_zeros) {
  const Folder disk;
  const AsyncIoPtr io = open();
  const Bytes source = random_bytes(5'000, 2);
  async_io_run(*io, writing(disk.file("f"), source.data(), source.size(), 100'001));
  Bytes expected(100'001, 0);
  expected.insert(expected.end(), source.begin(), source.end());
  EXPECT_EQ(plain_read(disk.file("f")), expected);
}

TEST_P(AsyncIoTest, Threads_may_use_one_of_them_at_once) {
  const Folder disk;
  const AsyncIoPtr io = open(4096, 4, 2);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const std::string path = disk.file(std::to_string(t));
        const Bytes source = random_bytes(static_cast<std::size_t>(1 + 777 * i), 1u);
        async_io_run(*io, writing(path, source.data(), source.size()));
        Bytes got(source.size());
        async_io_run(*io, reading(path, got.data(), got.size()));
        ASSERT_EQ(got, source);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(AsyncIoTest, Large_offsets_beyond_32_bits_are_right) {
  const Folder disk;
  const std::string path = disk.file("sparse");
  const AsyncIoPtr io = open(65'536, 4);
  const Bytes source = random_bytes(70'001, 4);
  const std::int64_t offset = (std::int64_t{5} << 30) + 123;
  async_io_run(*io, writing(path, source.data(), source.size(), offset));
  Bytes got(source.size());
  async_io_run(*io, reading(path, got.data(), got.size(), offset));
  EXPECT_EQ(got, source);
  EXPECT_EQ(async_io_file_size(path), offset + 70'001);
}

TEST_P(AsyncIoTest, A_descriptor_is_written_and_may_be_closed_before_the_operation_is_done) {
  const Folder disk;
  for (int flags : {0, O_DIRECT}) {
    const std::string path = disk.file(std::to_string(flags));
    const AsyncIoPtr io = open();
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | flags, 0600);
    ASSERT_GE(fd, 0);
    const Bytes source = random_bytes(200'011, 9);
    AsyncIoRequest request = writing("", source.data(), source.size(), 33);
    request.fd = fd;
    async_io_submit(*io, request);
    ::close(fd);
    EXPECT_EQ(async_io_wait(*io), 1);
    Bytes expected(33, 0);
    expected.insert(expected.end(), source.begin(), source.end());
    EXPECT_EQ(plain_read(path), expected);
  }
}

TEST_P(AsyncIoTest, The_owner_of_the_memory_is_let_go_by_wait) {
  const Folder disk;
  const AsyncIoPtr io = open();
  auto owner = std::make_shared<Bytes>(random_bytes(10'000, 1));
  AsyncIoRequest request = writing(disk.file("f"), owner->data(), owner->size());
  request.owner = owner;
  async_io_submit(*io, std::move(request));
  const std::weak_ptr<Bytes> watched = owner;
  owner.reset();
  EXPECT_FALSE(watched.expired());
  async_io_wait(*io);
  EXPECT_TRUE(watched.expired());
}

TEST_P(AsyncIoTest, What_is_to_be_done_on_success_is_done_by_wait_and_only_then) {
  const Folder disk;
  const AsyncIoPtr io = open();
  Bytes source = random_bytes(10'000, 1), got(1);
  int succeeded = 0;
  AsyncIoRequest request = writing(disk.file("f"), source.data(), source.size());
  request.succeeded = [&] { ++succeeded; };
  async_io_run(*io, request);
  EXPECT_EQ(succeeded, 1);
  async_io_submit(*io, request);
  AsyncIoRequest missing = reading(disk.file("none"), got.data(), got.size());
  missing.succeeded = [&] { succeeded += 100; };
  async_io_submit(*io, missing);
  AsyncIoRequest throws = request;
  throws.succeeded = [] { throw std::runtime_error("of the caller"); };
  async_io_submit(*io, throws);
  async_io_submit(*io, request);
  EXPECT_EQ(thrown_by([&] { async_io_wait(*io); }).code, ENOENT);
  EXPECT_EQ(succeeded, 3);
  async_io_submit(*io, throws);
  async_io_submit(*io, request);
  EXPECT_THROW(async_io_wait(*io), std::runtime_error);
  EXPECT_EQ(succeeded, 4);
  EXPECT_EQ(async_io_wait(*io), 0);
}

TEST_P(AsyncIoTest, Wait_returns_in_no_thread_before_what_is_to_be_done_on_success_is_done) {
  const Folder disk;
  const AsyncIoPtr io = open();
  const Bytes source = random_bytes(10'000, 1);
  std::atomic<bool> returned{false};
  bool too_early = false;
  std::thread other;
  AsyncIoRequest request = writing(disk.file("f"), source.data(), source.size());
  request.succeeded = [&] {
    other = std::thread([&] {
      async_io_wait(*io);
      returned = true;
    });
    // It would need less, and must not return however long this takes.
    for (int i = 0; i < 100 && !returned; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    too_early = returned;
  };
  async_io_submit(*io, request);
  EXPECT_EQ(async_io_wait(*io), 1);
  other.join();
  EXPECT_FALSE(too_early);
}

TEST_P(AsyncIoTest, Closing_waits_for_what_is_in_flight) {
  const Folder disk;
  const Bytes source = random_bytes(3'000'000, 1);
  AsyncIoPtr io = open(65'536, 2, 2);
  async_io_submit(*io, writing(disk.file("f"), source.data(), source.size()));
  io.reset();
  EXPECT_EQ(plain_read(disk.file("f")), source);
}

TEST_P(AsyncIoTest, Says_which_engine_it_is) {
  EXPECT_EQ(async_io_engine(*open()), GetParam());
}

TEST(AsyncIo, Self_test_writes_and_reads_through_every_engine_and_leaves_nothing) {
  const Folder folder;
  setenv("TMPDIR", folder.path().c_str(), 1);
  const std::size_t files = entries_of("/proc/self/fd");
  char detail[300] = "";
  EXPECT_EQ(ds_self_test_async_io("cpu", detail, sizeof detail), DS_SELF_TEST_OK) << detail;
  EXPECT_THAT(detail, HasSubstr("posix"));
  EXPECT_THAT(detail, HasSubstr("every byte written and read back"));
  EXPECT_TRUE(are_worker_threads(0));
  EXPECT_EQ(entries_of("/proc/self/fd"), files);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  setenv("TMPDIR", folder.file("missing").c_str(), 1);
  EXPECT_EQ(ds_self_test_async_io(nullptr, detail, sizeof detail), DS_SELF_TEST_MISSING);
  EXPECT_THAT(detail, HasSubstr("cannot make a file like"));
  plain_write(folder.file("no-folder"), {});
  setenv("TMPDIR", folder.file("no-folder").c_str(), 1);
  EXPECT_EQ(ds_self_test_async_io("cpu", detail, sizeof detail), DS_SELF_TEST_MISSING) << detail;
  unsetenv("TMPDIR");
  EXPECT_EQ(ds_self_test_async_io("cuda", detail, sizeof detail), DS_SELF_TEST_SKIPPED);
  EXPECT_STREQ(detail, "has code for cpu, not for cuda");
}

TEST(AsyncIo, The_environment_names_the_engine_and_a_wrong_name_is_an_error) {
  setenv("DS_AIO_ENGINE", "posix", 1);
  EXPECT_EQ(async_io_engine(*AsyncIoPtr(async_io_open({}))), AsyncIoEngine::posix);
  setenv("DS_AIO_ENGINE", "magic", 1);
  EXPECT_THROW(async_io_open({}), std::invalid_argument);
  unsetenv("DS_AIO_ENGINE");
}

TEST(AsyncIo, Options_and_requests_out_of_range_are_refused) {
  AsyncIoOptions options;
  options.block_size = 0;
  EXPECT_THROW(async_io_open(options), std::invalid_argument);
  options = {};
  options.queue_depth = 0;
  EXPECT_THROW(async_io_open(options), std::invalid_argument);
  options = {};
  options.threads = 0;
  EXPECT_THROW(async_io_open(options), std::invalid_argument);
  const AsyncIoPtr io(async_io_open({}));
  char byte = 0;
  EXPECT_THROW(async_io_submit(*io, reading("f", &byte, 1, -1)), std::invalid_argument);
  EXPECT_THROW(async_io_submit(*io, reading("f", nullptr, 1)), std::invalid_argument);
  EXPECT_THROW(async_io_submit(*io, reading("", &byte, 1)), std::invalid_argument);
}

}  // namespace
}  // namespace ds

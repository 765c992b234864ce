#include <sys/mount.h>
#include <sys/resource.h>

#include <thread>

#include "io_test.h"

namespace ds {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class AsyncIoFailure : public EachEngine {
 protected:
  // Submitted and waited for.
  Thrown failure_of(AsyncIo& io, const AsyncIoRequest& request) {
    return thrown_by([&] {
      async_io_submit(io, request);
      async_io_wait(io);
    });
  }
};
DS_FOR_EACH_ENGINE(AsyncIoFailure);

TEST_P(AsyncIoFailure, Of_a_missing_file_names_it) {
  const Folder disk;
  const AsyncIoPtr io = open();
  char byte;
  for (const Thrown& thrown :
       {failure_of(*io, reading(disk.file("none"), &byte, 1)),
        thrown_by([&] { async_io_run(*io, reading(disk.file("none"), &byte, 1)); }),
        failure_of(*io, reading(disk.file("none"), nullptr, 0)),
        failure_of(*io, writing(disk.file("no/folder"), &byte, 1)),
        thrown_by([&] { async_io_file_size(disk.file("none")); })}) {
    EXPECT_EQ(thrown.code, ENOENT);
    EXPECT_THAT(thrown.text, AllOf(HasSubstr(disk.path()), HasSubstr("No such file")));
  }
}

TEST_P(AsyncIoFailure, Of_a_folder_or_a_pipe_is_an_error_and_no_wait) {
  const Folder disk;
  const AsyncIoPtr io = open();
  char byte;
  EXPECT_EQ(failure_of(*io, reading(disk.path(), &byte, 1)).code, EISDIR);
  ASSERT_EQ(mkfifo(disk.file("pipe").c_str(), 0600), 0);
  EXPECT_EQ(failure_of(*io, reading(disk.file("pipe"), &byte, 1)).code, ESPIPE);
  EXPECT_EQ(failure_of(*io, writing(disk.file("pipe"), &byte, 1)).code, ESPIPE);
}

TEST_P(AsyncIoFailure, Of_a_read_past_the_end_says_where_the_file_ends_and_reads_nothing) {
  const Folder disk;
  plain_write(disk.file("f"), random_bytes(10'000, 1));
  const AsyncIoPtr io = open();
  Bytes got(10'000, 0xEE);
  const Thrown thrown = failure_of(*io, reading(disk.file("f"), got.data(), got.size(), 1));
  EXPECT_EQ(thrown.code, ENODATA);
  EXPECT_THAT(thrown.text, AllOf(HasSubstr("cannot read 10000 bytes at offset 1 of"),
                                 HasSubstr("the file ends at byte 10000")));
  EXPECT_EQ(got, Bytes(10'000, 0xEE));
  EXPECT_EQ(failure_of(*io, reading(disk.file("f"), got.data(), 1, 20'000)).code, ENODATA);
}

TEST_P(AsyncIoFailure, Of_nothing_in_an_empty_file_is_none) {
  const Folder disk;
  const AsyncIoPtr io = open();
  async_io_submit(*io, writing(disk.file("empty"), nullptr, 0));
  EXPECT_EQ(async_io_wait(*io), 1);
  EXPECT_EQ(async_io_file_size(disk.file("empty")), 0);
  async_io_submit(*io, reading(disk.file("empty"), nullptr, 0));
  EXPECT_EQ(async_io_wait(*io), 1);
  char byte;
  EXPECT_EQ(failure_of(*io, reading(disk.file("empty"), &byte, 1)).code, ENODATA);
}

TEST_P(AsyncIoFailure, Of_a_file_that_is_cut_short_while_it_is_read_is_an_error_or_right) {
  const Folder disk;
  const std::string path = disk.file("f");
  const Bytes source = random_bytes(4 << 20, 1);
  const AsyncIoPtr io = open(65'536, 2);
  for (int round = 0; round < 20; ++round) {
    plain_write(path, source);
    Bytes got(source.size());
    async_io_submit(*io, reading(path, got.data(), got.size()));
    std::this_thread::yield();
    ASSERT_EQ(truncate(path.c_str(), 100'001), 0);
    const Thrown thrown = thrown_by([&] { async_io_wait(*io); });
    if (thrown.code != 0) {
      EXPECT_EQ(thrown.code, ENODATA) << thrown.text;
      EXPECT_THAT(thrown.text, HasSubstr("the file ends at byte"));
    } else {
      // A page that was being read when it went away reads as zeros; nothing else may differ.
      for (std::size_t i = 0; i < 100'001; ++i) ASSERT_EQ(got[i], source[i]) << i;
    }
  }
}

// The same for certain: the kernel gives such files a page as their size.
TEST_P(AsyncIoFailure, Of_a_file_that_ends_before_its_size_says_where_it_ends) {
  const std::string path = "/sys/devices/system/cpu/online";
  const std::size_t there = plain_read(path).size();
  std::error_code none;
  const std::uintmax_t size = std::filesystem::file_size(path, none);
  if (none || there == 0 || size <= there) GTEST_SKIP() << path << " is not such a file here";
  const AsyncIoPtr io = open();
  Bytes got(size);
  const Thrown thrown = failure_of(*io, reading(path, got.data(), got.size()));
  EXPECT_EQ(thrown.code, ENODATA);
  EXPECT_THAT(thrown.text, HasSubstr("the file ends at byte " + std::to_string(there)));
}

TEST_P(AsyncIoFailure, Of_a_closed_or_unfit_descriptor_is_EBADF_at_once) {
  const Folder disk;
  const AsyncIoPtr io = open();
  plain_write(disk.file("f"), random_bytes(100, 1));
  const int fd = ::open(disk.file("f").c_str(), O_RDONLY);
  char byte = 1;
  AsyncIoRequest request = writing("", &byte, 1);
  request.fd = fd;
  EXPECT_EQ(thrown_by([&] { async_io_submit(*io, request); }).code, EBADF);
  ::close(fd);
  const Thrown thrown = thrown_by([&] { async_io_submit(*io, request); });
  EXPECT_EQ(thrown.code, EBADF);
  EXPECT_THAT(thrown.text, HasSubstr("descriptor " + std::to_string(fd)));
  const int append = ::open(disk.file("f").c_str(), O_WRONLY | O_APPEND);
  request.fd = append;
  EXPECT_EQ(thrown_by([&] { async_io_submit(*io, request); }).code, EINVAL);
  ::close(append);
  EXPECT_EQ(async_io_wait(*io), 0);
}

// A file system of our own that is 1 MiB large.
class SmallDisk {
 public:
  explicit SmallDisk(const Folder& folder) : path_(folder.file("small")) {
    mkdir(path_.c_str(), 0700);
    mounted_ = mount("ds-test", path_.c_str(), "tmpfs", 0, "size=1m") == 0;
    why_not_ = errno;
  }
  ~SmallDisk() {
    if (mounted_) umount2(path_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  bool mounted() const { return mounted_; }
  std::string why_not() const { return std::strerror(why_not_); }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
  bool mounted_ = false;
  int why_not_ = 0;
};

TEST_P(AsyncIoFailure, Of_a_full_disk_is_ENOSPC_with_file_and_offset_and_the_next_write_works) {
  const Folder disk;
  const SmallDisk small(disk);
  if (!small.mounted()) GTEST_SKIP() << "cannot mount a tmpfs: " << small.why_not();
  const AsyncIoPtr io = open(65'536, 4);
  const Bytes source = random_bytes(3 << 20, 1);
  const Thrown thrown = failure_of(*io, writing(small.file("f"), source.data(), source.size()));
  EXPECT_EQ(thrown.code, ENOSPC);
  EXPECT_THAT(thrown.text, AllOf(HasSubstr("at offset "), HasSubstr(small.file("f")),
                                 HasSubstr("No space left")));
  ASSERT_EQ(unlink(small.file("f").c_str()), 0);
  // The handle of the removed file must not hold its space.
  async_io_submit(*io, writing(small.file("g"), source.data(), 900'000));
  EXPECT_EQ(async_io_wait(*io), 1);
  EXPECT_EQ(plain_read(small.file("g")), Bytes(source.begin(), source.begin() + 900'000));
}

TEST_P(AsyncIoFailure, Of_a_size_limit_is_EFBIG) {
  const Folder disk;
  EXPECT_EQ(in_child([&] {
              signal(SIGXFSZ, SIG_IGN);
              const rlimit limit{100'000, 100'000};
              if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 2;
              const AsyncIoPtr io = open(65'536, 4);
              const Bytes source(1'000'000, 1);
              const Thrown thrown =
                  failure_of(*io, writing(disk.file("f"), source.data(), source.size()));
              return thrown.code == EFBIG ? 0 : 1;
            }),
            0);
}

TEST_P(AsyncIoFailure, Among_many_operations_is_thrown_once_counted_and_harms_no_other) {
  const Folder disk;
  const AsyncIoPtr io = open(4096, 4, 2);
  const Bytes source = random_bytes(20'000, 1);
  Bytes got(1);
  for (int i = 0; i < 10; ++i) {
    async_io_submit(*io, writing(disk.file(std::to_string(i)), source.data(), source.size()));
    async_io_submit(*io, reading(disk.file("none"), got.data(), 1));
  }
  const Thrown thrown = thrown_by([&] { async_io_wait(*io); });
  EXPECT_EQ(thrown.code, ENOENT);
  EXPECT_THAT(thrown.text, HasSubstr("(and 9 more failed)"));
  for (int i = 0; i < 10; ++i) EXPECT_EQ(plain_read(disk.file(std::to_string(i))), source);
  EXPECT_EQ(async_io_wait(*io), 0);
}

TEST_P(AsyncIoFailure, Of_validation_names_the_file_and_what_is_right_passes) {
  const Folder disk;
  const AsyncIoPtr io = open(65'536, 1);
  const Bytes source = random_bytes(3'000'001, 1);
  AsyncIoRequest request = writing(disk.file("f"), source.data(), source.size(), 5);
  request.validate = true;
  async_io_run(*io, request);
  // Another writer changes a byte between a write, of other bytes, and wait().
  const Bytes second = random_bytes(source.size(), 2);
  request.data = const_cast<unsigned char*>(second.data());
  async_io_submit(*io, request);
  Bytes expected(5, 0);
  expected.insert(expected.end(), second.begin(), second.end());
  ASSERT_TRUE(eventually([&] { return plain_read(disk.file("f")) == expected; }));
  const unsigned char other = static_cast<unsigned char>(second[2'500'000] ^ 1);
  async_io_run(*io, writing(disk.file("f"), &other, 1, 2'500'005));
  const Thrown thrown = thrown_by([&] { async_io_wait(*io); });
  EXPECT_EQ(thrown.code, EIO);
  EXPECT_THAT(thrown.text, AllOf(HasSubstr("difference"), HasSubstr(disk.file("f"))));
}

TEST_P(AsyncIoFailure,
       Of_a_child_process_that_uses_what_its_parent_opened_is_an_error_and_no_wait) {
  const Folder disk;
  AsyncIoPtr io = open();
  EXPECT_EQ(in_child([&] {
              int wrong = 2;
              try {
                char byte = 0;
                async_io_submit(*io, writing(disk.file("f"), &byte, 1));
              } catch (const std::logic_error&) {
                wrong = 0;
              }
              io.reset();
              return wrong;
            }),
            0);
}

// What is kept open must always be the file of that name.
TEST_P(AsyncIoFailure, Of_a_kept_handle_is_none_where_the_file_was_replaced_removed_or_renamed) {
  const Folder disk;
  const std::string path = disk.file("f"), other = disk.file("g");
  const AsyncIoPtr io = open();
  const auto read_back = [&](std::size_t size) {
    Bytes got(size);
    async_io_run(*io, reading(path, got.data(), size));
    return got;
  };
  for (unsigned round = 0; round < 20; ++round) {
    const Bytes first = random_bytes(5'000, 4 * round), second = random_bytes(6'000, 4 * round + 1);
    async_io_run(*io, writing(path, first.data(), first.size()));
    ASSERT_EQ(read_back(5'000), first);
    plain_write(other, second);
    std::filesystem::rename(other, path);
    ASSERT_EQ(read_back(6'000), second);
    ASSERT_EQ(unlink(path.c_str()), 0);
    char byte;
    ASSERT_EQ(thrown_by([&] { async_io_run(*io, reading(path, &byte, 1)); }).code, ENOENT);
    async_io_run(*io, writing(path, first.data(), first.size()));
    ASSERT_EQ(plain_read(path), first);
    // In place: the same file, other bytes and another length.
    plain_write(path, second);
    ASSERT_EQ(read_back(6'000), second);
    ASSERT_EQ(unlink(path.c_str()), 0);
  }
}

TEST_P(AsyncIoFailure, Of_few_descriptors_is_none_for_many_files_at_once) {
  const Folder disk;
  const Bytes source = random_bytes(10'000, 1);
  EXPECT_EQ(in_child([&] {
              const rlimit limit{100, 100};
              if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return 2;
              const AsyncIoPtr io = open(4096, 16);
              for (int i = 0; i < 1'000; ++i) {
                async_io_submit(
                    *io, writing(disk.file(std::to_string(i)), source.data(), source.size()));
              }
              return async_io_wait(*io) == 1'000 ? 0 : 1;
            }),
            0);
  EXPECT_EQ(entries_of(disk.path().c_str()), 1'000u);
}

// A file takes one descriptor when it is opened and another for its odd ends. If the first was the
// last there is, what is kept open for speed makes room for the second.
TEST_P(AsyncIoFailure, Of_the_last_descriptor_is_none_while_files_are_only_kept_open) {
  const Folder disk;
  const Bytes source = random_bytes(10'000, 1);
  EXPECT_EQ(in_child([&] {
              const rlimit limit{100, 100};
              if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return 2;
              const AsyncIoPtr io = open();
              async_io_run(*io, writing(disk.file("kept"), source.data(), source.size()));
              std::vector<int> taken;
              for (int fd; (fd = ::open("/dev/null", O_RDONLY)) >= 0;) taken.push_back(fd);
              if (errno != EMFILE || taken.empty()) return 3;
              ::close(taken.back());
              async_io_run(*io, writing(disk.file("f"), source.data(), source.size(), 1));
              return 0;
            }),
            0);
  EXPECT_EQ(plain_read(disk.file("f")).size(), source.size() + 1);
}

TEST_P(AsyncIoFailure, Or_success_leaves_no_descriptor_or_thread_behind) {
  const Folder disk;
  const char* const more = std::getenv("DS_AIO_OPERATIONS");  // 100000 takes a minute.
  const int count = more != nullptr ? std::atoi(more) : 4'000;
  const std::size_t files = entries_of("/proc/self/fd");
  const Bytes source = random_bytes(5'000, 1);
  {
    const AsyncIoPtr io = open(4096, 16, 2);
    Bytes got(5'000);
    for (int i = 0; i < count; ++i) {
      const std::string path = disk.file(std::to_string(i % 200));
      async_io_submit(*io, writing(path, source.data(), source.size()));
      async_io_submit(*io, reading(i % 50 == 0 ? disk.file("none") : path, got.data(), 0));
      if (i % 100 == 99) thrown_by([&] { async_io_wait(*io); });
    }
    thrown_by([&] { async_io_wait(*io); });
    // At most what the cache keeps (two descriptors a file) and what the engine has of its own.
    EXPECT_LT(entries_of("/proc/self/fd"), files + 140);
    EXPECT_EQ(worker_threads(), 2u);
  }
  for (int i = 0; i < 50; ++i) open(4096, 4, 3);
  EXPECT_TRUE(are_worker_threads(0));
  EXPECT_EQ(entries_of("/proc/self/fd"), files);
}

TEST_P(AsyncIoFailure, Or_success_keeps_no_removed_file_open_for_long) {
  const Folder disk;
  const std::size_t files = entries_of("/proc/self/fd");
  const AsyncIoPtr io = open();
  const std::size_t with_engine = entries_of("/proc/self/fd");
  const Bytes source = random_bytes(100'000, 1);
  async_io_run(*io, writing(disk.file("f"), source.data(), source.size()));
  EXPECT_GT(entries_of("/proc/self/fd"), with_engine);
  unlink(disk.file("f").c_str());
  EXPECT_TRUE(eventually([&] { return entries_of("/proc/self/fd") == with_engine; }));
  EXPECT_GE(with_engine, files);
}

}  // namespace
}  // namespace ds

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <thread>

#include "orchestrator/base/file.h"
#include "orchestrator/base/result.h"
#include "orchestrator/base/sha256.h"
#include "orchestrator/parallel.h"
#include "tests/unit/temp_folder.h"

namespace dsi {
namespace {

TEST(Sha256, Matches_the_standard) {
  // FIPS 180-4, the examples for "abc" and for no bytes.
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(Sha256, Of_a_file_is_that_of_its_bytes) {
  TempFolder folder;
  std::string bytes(1'000'003, 'q');
  EXPECT_EQ(sha256_file(folder.write("x", bytes)).value(), sha256_hex(bytes));
  EXPECT_FALSE(sha256_file(folder.path() / "missing"));
}

TEST(WriteFile, Replaces_with_the_asked_mode_and_leaves_no_neighbour) {
  TempFolder folder;
  auto file = folder.write("x", "old");
  ASSERT_TRUE(write_file_atomically(file, "new", 0600));
  EXPECT_EQ(read_file(file).value(), "new");
  struct stat status {};
  ::stat(file.c_str(), &status);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
  EXPECT_FALSE(write_file_atomically(folder.path() / "no/folder", "x"));
}

TEST(Error, Grows_its_context_outwards) {
  Result<int> result = fail_with_help("disk full", "free some space");
  auto outer = result.map_error(in("while writing {}", "a.so"));
  EXPECT_EQ(to_string(outer.error()),
            "error: while writing a.so: disk full\n  help: free some space");
}

TEST(ParallelFor, Calls_each_once_and_no_more_at_once_than_asked) {
  std::vector<std::atomic<int>> calls(100);
  std::atomic<int> now{0};
  std::atomic<int> most{0};
  parallel_for(calls.size(), 7, {}, [&](std::size_t i) {
    int n = ++now;
    for (int seen = most; n > seen && !most.compare_exchange_weak(seen, n);) {
    }
    std::this_thread::yield();
    ++calls[i];
    --now;
  });
  for (const auto& n : calls) EXPECT_EQ(n, 1);
  EXPECT_LE(most, 7);
}

TEST(ParallelFor, Begins_nothing_after_a_stop) {
  std::stop_source stop;
  std::atomic<int> calls{0};
  parallel_for(1000, 1, stop.get_token(), [&](std::size_t i) {
    ++calls;
    if (i == 4) stop.request_stop();
  });
  EXPECT_EQ(calls, 5);
}

}  // namespace
}  // namespace dsi

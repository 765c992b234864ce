#include <sched.h>
#include <sys/mount.h>

#include "tests/loader/fixture.h"

namespace dsi::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

TEST_F(LoaderTest, Without_a_word_it_only_shows_that_it_runs) {
  Loader loader({DSI_LOADER});
  auto end = loader.end();
  EXPECT_EQ(end.code, 0);
  EXPECT_EQ(end.out + end.err, "");
}

TEST_F(LoaderTest, Becomes_the_agent_that_comes_by_standard_input_and_leaves_it_the_rest) {
  Loader loader(words(), [] { ::umask(0077); });
  EXPECT_EQ(loader.read_until("ready\n"), kReady);
  loader.write("stdin\n" + payload_.wire + "for the agent");
  EXPECT_EQ(loader.read_until("agent"), greeting() + "for the agent");
  EXPECT_EQ(loader.end().code, 7);
  expect_whole();
}

TEST_F(LoaderTest, An_agent_that_is_to_lie_elsewhere_leaves_the_prefix_alone) {
  auto there = folder_.path() / "of its own";
  fs::create_directory(there);
  auto with_folder = words();
  with_folder.back() = there.string();
  Loader loader(with_folder);
  EXPECT_EQ(loader.read_until("ready\n"), kReady);
  loader.write("stdin\n" + payload_.wire);
  EXPECT_EQ(loader.read_until("\n"), greeting());
  EXPECT_EQ(loader.end().code, 7);
  EXPECT_EQ(read_file(there / (payload_.digest + ".x")).value_or(""), payload_.bytes);
  EXPECT_EQ(read_file(there / (payload_.digest + ".lzma")).value_or(""), payload_.wire);
  EXPECT_TRUE(names().empty());
}

TEST_F(LoaderTest, Starts_the_real_agent) {
  payload_.bytes = read_file(DSI_AGENT).value_or("");
  payload_.wire = read_file(DSI_AGENT_LZMA).value_or("");
  payload_.digest = sha256_hex(payload_.bytes);
  Loader loader(words());
  EXPECT_EQ(loader.read_until("ready\n"), kReady);
  loader.write("stdin\n" + payload_.wire);
  EXPECT_EQ(loader.read_until("\n"), "DSI1 abc123\n");
  EXPECT_THAT(loader.read_until(payload_.digest), HasSubstr("\"agent\":\"" + payload_.digest));
  EXPECT_EQ(loader.end().code, 0);
  expect_whole();
}

TEST_F(LoaderTest, Starts_a_whole_agent_that_is_there_and_leaves_the_file_alone) {
  std::ofstream(agent()) << payload_.bytes;
  fs::permissions(agent(), fs::perms(0755));
  std::string newer = std::string(64, 'e') + ".x";
  std::ofstream(store_ / newer) << "a newer one";
  struct stat before {};
  ASSERT_EQ(::stat(agent().c_str(), &before), 0);
  Loader loader(words());
  EXPECT_EQ(loader.read_until("\n"), greeting());
  EXPECT_EQ(loader.end().code, 7);
  struct stat after {};
  ASSERT_EQ(::stat(agent().c_str(), &after), 0);
  EXPECT_EQ(after.st_ino, before.st_ino);
  EXPECT_EQ(read_file(store_ / newer).value_or(""), "a newer one");
}

TEST_F(LoaderTest, An_agent_that_another_host_put_there_meanwhile_stays) {
  Loader loader(words());
  EXPECT_EQ(loader.read_until("ready\n"), kReady);
  std::ofstream(agent()) << payload_.bytes;
  fs::permissions(agent(), fs::perms(0755));
  struct stat before {};
  ASSERT_EQ(::stat(agent().c_str(), &before), 0);
  loader.write("stdin\n" + payload_.wire);
  EXPECT_EQ(loader.read_until("\n"), greeting());
  loader.end();
  struct stat after {};
  ASSERT_EQ(::stat(agent().c_str(), &after), 0);
  EXPECT_EQ(after.st_ino, before.st_ino);
  expect_whole();
}

TEST_F(LoaderTest, Replaces_a_damaged_agent) {
  std::ofstream(agent()) << payload_.bytes.substr(0, 1000);
  fs::permissions(agent(), fs::perms(0755));
  Loader loader(words());
  EXPECT_EQ(loader.read_until("ready\n"), kReady);
  loader.write("stdin\n" + payload_.wire);
  EXPECT_EQ(loader.read_until("\n"), greeting());
  loader.end();
  expect_whole();
}

TEST_F(LoaderTest, A_link_in_the_way_is_replaced_and_not_followed) {
  auto precious = folder_.write("precious", "text");
  fs::create_symlink(precious, agent());
  fs::create_symlink(precious, compressed());
  fs::create_symlink(precious, store_ / "abc123.x.upload");
  fs::create_symlink(precious, store_ / "abc123.lzma.upload");
  Loader loader(words());
  EXPECT_EQ(loader.read_until("ready\n"), kReady);
  loader.write("stdin\n" + payload_.wire);
  EXPECT_EQ(loader.read_until("\n"), greeting());
  loader.end();
  EXPECT_EQ(read_file(precious).value_or(""), "text");
  expect_whole();
}

TEST_F(LoaderTest, A_partial_file_of_a_run_that_was_killed_is_in_nobodys_way) {
  std::ofstream(store_ / "abc123.x.upload") << "half";
  std::ofstream(store_ / "abc123.lzma.upload") << "half";
  Loader loader(words());
  EXPECT_EQ(loader.read_until("ready\n"), kReady);
  loader.write("stdin\n" + payload_.wire);
  EXPECT_EQ(loader.read_until("\n"), greeting());
  loader.end();
  expect_whole();
}

TEST_F(LoaderTest, Removes_its_own_file) {
  auto upload = store_ / "abc123.upload";
  fs::copy_file(DSI_LOADER, upload);
  Loader loader(words_for(payload_, upload.string()));
  EXPECT_EQ(loader.read_until("ready\n"), kReady);
  EXPECT_FALSE(fs::exists(upload));
  EXPECT_EQ(loader.end().code, 0);
}

TEST_F(LoaderTest, Input_that_ends_early_is_named) {
  Loader loader(words());
  EXPECT_EQ(loader.read_until("ready\n"), kReady);
  loader.write("stdin\n" + payload_.wire.substr(0, payload_.wire.size() - 1));
  auto end = loader.end();
  EXPECT_EQ(end.code, 64);
  EXPECT_EQ(end.err, "standard input ended before the agent was whole\n");
  EXPECT_TRUE(names().empty());
}

TEST_F(LoaderTest, A_flipped_bit_is_found_wherever_it_is) {
  for (std::size_t at : {std::size_t{0}, std::size_t{13}, std::size_t{20}, payload_.wire.size() / 2,
                         payload_.wire.size() - 1}) {
    std::string flipped = payload_.wire;
    flipped[at] ^= 0x10;
    Loader loader(words());
    loader.read_until("ready\n");
    loader.write("stdin\n" + flipped);
    auto end = loader.end();
    EXPECT_THAT(end.code, ::testing::AnyOf(65, 66)) << at;
    EXPECT_THAT(end.err, ::testing::AnyOf("the agent that came cannot be unpacked\n",
                                          "the SHA-256 of the agent that came differs\n"));
    EXPECT_TRUE(names().empty()) << at;
  }
}

TEST_F(LoaderTest, Another_file_than_the_one_asked_for_is_not_started) {
  payload_.digest = std::string(64, '1');
  Loader loader(words());
  loader.read_until("ready\n");
  loader.write("stdin\n" + payload_.wire);
  auto end = loader.end();
  EXPECT_EQ(end.code, 66);
  EXPECT_EQ(end.err, "the SHA-256 of the agent that came differs\n");
  EXPECT_TRUE(names().empty());
}

TEST_F(LoaderTest, Requests_that_make_no_sense_end_it) {
  for (const std::string& request :
       {std::string("nonsense\n"), std::string("\n"), std::string("stdin \n"),
        std::string("peer\n"), std::string("peer " + kKeyHex + " 0 1 1 1 127.0.0.1\n"),
        std::string("peer " + kKeyHex + " 70000 1 1 1 127.0.0.1\n"),
        std::string("peer " + kKeyHex + " 1 1 1 1\n"),
        std::string("peer " + kKeyHex.substr(1) + " 1 1 1 1 127.0.0.1\n"),
        std::string("peer " + kKeyHex + " 1 99999999999999999999 1 1 127.0.0.1\n"),
        std::string(5000, 'x')}) {
    Loader loader(words());
    loader.read_until("ready\n");
    loader.write(request);
    auto end = loader.end();
    EXPECT_EQ(end.code, 2) << request;
    EXPECT_EQ(std::count(end.err.begin(), end.err.end(), '\n'), 1) << end.err;
  }
  auto short_of_words = words();
  short_of_words.pop_back();
  EXPECT_EQ(Loader(short_of_words).end().code, 2);
  auto huge = words();
  huge[3] = "99999999999";
  EXPECT_EQ(Loader(huge).end().code, 2);
}

TEST_F(LoaderTest, A_prefix_that_is_not_there_is_named) {
  fs::remove_all(prefix_);
  auto end = Loader(words()).end();
  EXPECT_EQ(end.code, 60);
  EXPECT_EQ(end.err, "cannot open " + store_.string() + ": No such file or directory\n");
}

// A small file system of its own at the prefix, in a namespace that goes with the loader.
std::function<void()> mount_at(const fs::path& prefix, const char* options, unsigned long flags) {
  return [prefix, options, flags] {
    bool mounted = ::unshare(CLONE_NEWNS) == 0 &&
                   ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                   ::mount("tmpfs", prefix.c_str(), "tmpfs", flags & ~MS_RDONLY, options) == 0 &&
                   ::mkdir((prefix / "store").c_str(), 0755) == 0 &&
                   ((flags & MS_RDONLY) == 0 ||
                    ::mount("none", prefix.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) == 0);
    if (!mounted) ::_exit(99);
  };
}

bool may_mount() {
  if (::geteuid() != 0) return false;
  pid_t pid = ::fork();
  if (pid == 0) ::_exit(::unshare(CLONE_NEWNS) == 0 ? 0 : 1);
  int status = 0;
  ::waitpid(pid, &status, 0);
  return status == 0;
}

TEST_F(LoaderTest, A_full_disk_is_named) {
  if (!may_mount()) GTEST_SKIP() << "needs the right to mount";
  Loader loader(words(), mount_at(prefix_, "size=64k", 0));
  loader.read_until("ready\n");
  loader.write("stdin\n" + payload_.wire);
  auto end = loader.end();
  EXPECT_EQ(end.code, 61) << end.err;
  EXPECT_EQ(end.err, "cannot write " + agent().string() + ": No space left on device\n");
}

TEST_F(LoaderTest, Without_space_for_the_compressed_form_the_agent_starts_all_the_same) {
  if (!may_mount()) GTEST_SKIP() << "needs the right to mount";
  Loader loader(words(), mount_at(prefix_, "size=240k", 0));
  loader.read_until("ready\n");
  loader.write("stdin\n" + payload_.wire);
  EXPECT_EQ(loader.read_until("\n"), greeting());
}

TEST_F(LoaderTest, A_prefix_that_is_read_only_is_named) {
  if (!may_mount()) GTEST_SKIP() << "needs the right to mount";
  Loader loader(words(), mount_at(prefix_, "size=4m", MS_RDONLY));
  loader.read_until("ready\n");
  loader.write("stdin\n" + payload_.wire);
  auto end = loader.end();
  EXPECT_EQ(end.code, 61) << end.err;
  EXPECT_EQ(end.err, "cannot write " + agent().string() + ": Read-only file system\n");
}

TEST_F(LoaderTest, A_prefix_that_runs_no_programs_is_named) {
  if (!may_mount()) GTEST_SKIP() << "needs the right to mount";
  Loader loader(words(), mount_at(prefix_, "size=4m", MS_NOEXEC));
  loader.read_until("ready\n");
  loader.write("stdin\n" + payload_.wire);
  auto end = loader.end();
  EXPECT_EQ(end.code, 62) << end.err;
  EXPECT_EQ(end.err, "cannot start " + agent().string() + ": Permission denied\n");
}

}  // namespace
}  // namespace dsi::testing

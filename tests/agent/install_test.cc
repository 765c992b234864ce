#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "tests/agent/fixture.h"

namespace dsi::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(AgentTest, Hello_changes_nothing_on_the_node) {
  Head head(DSI_AGENT, prefix_);
  ASSERT_TRUE(head.connected());
  EXPECT_EQ(head.hello().version, protocol::kVersion);
  EXPECT_EQ(head.hello().agent, *sha256_file(DSI_AGENT));
  EXPECT_EQ(head.hello().facts.prefix, prefix_);
  EXPECT_GT(head.hello().facts.free_bytes, 0u);
  EXPECT_FALSE(fs::exists(prefix_));
}

TEST_F(AgentTest, Installs_then_is_up_to_date_then_upgrades_and_rolls_back) {
  TestRelease one = make_release("1");
  TestRelease two = make_release("2");
  TestRelease three = make_release("3");
  ASSERT_EQ(install(one), "installed") << last_.error.what;
  EXPECT_EQ(last_.from, "");
  EXPECT_EQ(last_.to, one.id());
  EXPECT_EQ(current(prefix_), one.id());
  EXPECT_EQ(files_sent_, 4u);
  EXPECT_EQ(status_of("good"), "ok");
  EXPECT_EQ(slurp(prefix_ / "current/python/ds/version.py"), "version = '1'\n");

  ASSERT_EQ(install(one), "up-to-date");
  EXPECT_EQ(files_sent_, 0u);
  EXPECT_EQ(last_.from, one.id());
  EXPECT_EQ(last_.to, one.id());
  EXPECT_EQ(status_of("good"), "ok");

  ASSERT_EQ(install(two), "installed");
  EXPECT_EQ(files_sent_, 1u) << "three of the files were there";
  ASSERT_EQ(install(three), "installed");
  EXPECT_FALSE(fs::exists(prefix_ / "releases" / one.id())) << "only the previous one is kept";
  EXPECT_TRUE(fs::exists(prefix_ / "releases" / two.id()));
  expect_consistent(prefix_);
  EXPECT_THAT(leftovers(prefix_), IsEmpty());

  Head head(DSI_AGENT, prefix_);
  EXPECT_EQ(head.hello().facts.current, three.id());
  EXPECT_EQ(head.hello().facts.previous, two.id());
  auto back = head.rollback();
  ASSERT_TRUE(back);
  EXPECT_EQ(back->result, "rolled-back") << back->error.what;
  EXPECT_EQ(back->from, three.id());
  EXPECT_EQ(back->to, two.id());
  EXPECT_EQ(current(prefix_), two.id());
  auto forth = head.rollback();
  ASSERT_TRUE(forth);
  EXPECT_EQ(forth->to, three.id()) << "the release that was left is the way back";
  auto state = nlohmann::json::parse(slurp(prefix_ / "state.json"));
  EXPECT_EQ(state["history"].size(), 5u);
  EXPECT_EQ(state["history"][4]["action"], "rollback");
  EXPECT_EQ(state["history"][0]["by"], "tester@head");
}

TEST_F(AgentTest, Rollback_without_a_previous_release_is_an_error_that_changes_nothing) {
  {
    Head head(DSI_AGENT, prefix_);
    auto result = head.rollback();
    ASSERT_TRUE(result);
    EXPECT_EQ(result->result, "failed");
    EXPECT_EQ(result->error.what, "there is no release to go back to");
    EXPECT_FALSE(fs::exists(prefix_));
  }
  ASSERT_EQ(install(make_release("1")), "installed");
  auto before = snapshot(prefix_);
  Head head(DSI_AGENT, prefix_);
  auto result = head.rollback();
  ASSERT_TRUE(result);
  EXPECT_EQ(result->error.what, "there is no release to go back to");
  EXPECT_EQ(snapshot(prefix_), before);
}

TEST_F(AgentTest, Rollback_refuses_a_damaged_release) {
  TestRelease one = make_release("1");
  ASSERT_EQ(install(one), "installed");
  ASSERT_EQ(install(make_release("2")), "installed");
  fs::remove(prefix_ / "releases" / one.id() / "python/ds/version.py");
  Head head(DSI_AGENT, prefix_);
  auto result = head.rollback();
  ASSERT_TRUE(result);
  EXPECT_EQ(result->result, "failed");
  EXPECT_THAT(result->error.what, HasSubstr("python/ds/version.py is missing"));
  EXPECT_EQ(current(prefix_), make_release("2").id());
}

TEST_F(AgentTest, Uninstall_removes_what_was_installed_and_nothing_else) {
  ASSERT_EQ(install(make_release("1")), "installed");
  write(prefix_ / "notes.txt", "mine");
  {
    Head head(DSI_AGENT, prefix_);
    auto result = head.uninstall();
    ASSERT_TRUE(result);
    EXPECT_EQ(result->result, "uninstalled") << result->error.what;
    EXPECT_EQ(result->from, make_release("1").id());
    EXPECT_EQ(result->to, "");
  }
  EXPECT_THAT(snapshot(prefix_), ElementsAre(::testing::Key("notes.txt")));
  fs::remove(prefix_ / "notes.txt");
  Head head(DSI_AGENT, prefix_);
  head.uninstall();
  EXPECT_FALSE(fs::exists(prefix_));
  auto again = head.uninstall();
  ASSERT_TRUE(again);
  EXPECT_EQ(again->result, "uninstalled");
  EXPECT_EQ(again->from, "");
}

TEST_F(AgentTest, Report_where_nothing_is_installed_says_so) {
  Head head(DSI_AGENT, prefix_);
  auto result = head.report();
  ASSERT_TRUE(result);
  EXPECT_EQ(result->result, "failed");
  EXPECT_EQ(result->error.what, "nothing is installed at " + prefix_.string());
  EXPECT_FALSE(fs::exists(prefix_));
}

TEST_F(AgentTest, An_empty_library_is_reported_as_damaged_and_repaired) {
  TestRelease release = make_release("1");
  ASSERT_EQ(install(release), "installed");
  auto library = prefix_ / "current/lib/libds_good.so";
  auto size = fs::file_size(library);
  write(library, "");  // In place: the store's link is emptied, too.
  {
    Head head(DSI_AGENT, prefix_);
    auto report = head.report();
    ASSERT_TRUE(report);
    EXPECT_EQ(report->result, "reported");
    ASSERT_EQ(report->ops.size(), 1u);
    EXPECT_EQ(report->ops[0].status, "damaged");
    std::string with_comma = std::to_string(size);
    with_comma.insert(with_comma.size() - 3, ",");
    EXPECT_EQ(report->ops[0].detail,
              "lib/libds_good.so is empty; the release has " + with_comma + " bytes");
  }
  ASSERT_EQ(install(release), "repaired") << last_.error.what;
  EXPECT_EQ(files_sent_, 1u);
  EXPECT_EQ(status_of("good"), "ok");
  expect_consistent(prefix_);
  EXPECT_EQ(install(release), "up-to-date");
}

TEST_F(AgentTest, Repairs_whatever_stands_in_a_files_place) {
  TestRelease release = make_release("1");
  ASSERT_EQ(install(release), "installed");
  auto at = prefix_ / "releases" / release.id();
  fs::remove_all(at / "python/ds");
  fs::create_symlink("/etc", at / "python/ds");  // A folder that leads elsewhere.
  fs::remove(at / "lib/libds_good.so");
  fs::create_directory(at / "lib/libds_good.so");
  write(at / "lib/libds_good.so/x", "x");
  fs::permissions(at / "bin/ds-probe", fs::perms(0700));
  write(at / "manifest.json", "{}");
  ASSERT_EQ(install(release), "repaired") << last_.error.what;
  EXPECT_FALSE(fs::is_symlink(at / "python/ds"));
  expect_consistent(prefix_);
  EXPECT_FALSE(fs::exists("/etc/version.py"));
}

TEST_F(AgentTest, Damage_that_concerns_no_op_is_told_with_the_report) {
  ASSERT_EQ(install(make_release("1")), "installed");
  auto file = prefix_ / "current/python/ds/version.py";
  write(file, "version = '9'\n");
  Head head(DSI_AGENT, prefix_);
  auto report = head.report();
  ASSERT_TRUE(report);
  EXPECT_EQ(report->result, "reported");
  EXPECT_EQ(report->ops[0].status, "ok");
  EXPECT_THAT(report->error.what, HasSubstr("python/ds/version.py is altered"));
}

TEST_F(AgentTest, A_damaged_store_file_is_sent_again_and_not_installed) {
  ASSERT_EQ(install(make_release("1")), "installed");
  TestRelease two = make_release("2");
  auto store = prefix_ / "store" / sha256_hex("same = True\n");
  fs::remove(store);
  write(store, "same = Fals\n");
  ASSERT_EQ(install(two), "installed") << last_.error.what;
  EXPECT_EQ(files_sent_, 2u);
  expect_consistent(prefix_);
}

TEST_F(AgentTest, One_content_with_two_modes_is_sent_once) {
  TestRelease release = make_release("1");
  release.add_file("bin/tool", "#!/bin/sh\n", 0755);
  release.add_file("share/tool.txt", "#!/bin/sh\n", 0644);
  ASSERT_EQ(install(release), "installed") << last_.error.what;
  EXPECT_EQ(files_sent_, 5u);
  expect_consistent(prefix_);
}

TEST_F(AgentTest, A_large_file_and_an_empty_file_arrive) {
  TestRelease release = make_release("1");
  std::string large(3'000'000, '\0');
  std::uint32_t x = 1;
  for (char& c : large) c = static_cast<char>((x = x * 1664525 + 1013904223) >> 24);
  release.add_file("lib/large.bin", large);
  release.add_file("lib/empty", "");
  release.add_file("lib/zeros", std::string(5'000'000, '\0'));
  ASSERT_EQ(install(release), "installed") << last_.error.what;
  expect_consistent(prefix_);
}

TEST_F(AgentTest, Umask_077_changes_no_mode) {
  TestRelease release = make_release("1");
  Head head(DSI_AGENT, prefix_, {{}, [] { ::umask(077); }});
  auto result = head.install(release);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->result, "installed");
  expect_consistent(prefix_);
  for (const char* path : {"", "store", "releases", "current/", "current/lib"}) {
    EXPECT_EQ(static_cast<unsigned>(fs::status(prefix_ / path).permissions()), 0755u) << path;
  }
}

TEST_F(AgentTest, A_path_out_of_the_release_is_refused) {
  for (const char* path : {"../../evil", "/etc/evil", "lib/../../evil", "manifest.json", "lib"}) {
    TestRelease release = make_release("1");
    release.add_file(path, "evil");
    EXPECT_EQ(install(release), "failed") << path;
    EXPECT_NE(last_.error.what, "");
    EXPECT_FALSE(fs::exists(prefix_)) << path;
  }
}

TEST_F(AgentTest, A_link_planted_below_the_prefix_is_not_followed) {
  TestRelease release = make_release("1");
  auto outside = folder_.path() / "outside";
  for (const char* name : {"store", "releases"}) {
    fs::create_directories(prefix_);
    fs::create_directories(outside);
    fs::create_directory_symlink(outside, prefix_ / name);
    EXPECT_EQ(install(release), "failed") << name;
    EXPECT_THAT(last_.error.what, HasSubstr(name));
    EXPECT_THAT(last_.error.help, HasSubstr("symbolic link"));
    EXPECT_TRUE(fs::is_empty(outside)) << name;
    fs::remove_all(prefix_);
  }
  // Where a release is being made: the link is removed, not what it leads to.
  fs::create_directories(prefix_ / "releases");
  write(outside / "precious", "x");
  fs::create_directory_symlink(outside, prefix_ / "releases" / (release.id() + ".partial"));
  EXPECT_EQ(install(release), "installed");
  EXPECT_EQ(std::distance(fs::directory_iterator(outside), {}), 1);
}

TEST_F(AgentTest, A_current_that_is_no_link_is_left_alone) {
  fs::create_directories(prefix_ / "current");
  EXPECT_EQ(install(make_release("1")), "failed");
  EXPECT_THAT(last_.error.what, HasSubstr("current is no symbolic link"));
  EXPECT_TRUE(fs::is_directory(prefix_ / "current"));
}

// What a broken or hostile stream does: a clear error, the old release untouched, nothing partial.
class BadStream : public AgentTest {
 protected:
  void SetUp() override {
    ASSERT_EQ(install(make_release("1")), "installed");
    before_ = snapshot(prefix_);
  }

  // Starts an upgrade, lets `send` answer "need" for the one file, expects the failure.
  void expect_failure(
      const std::function<void(Head&, const std::string&, const std::string&)>& send,
      const std::string& message) {
    Head head(DSI_AGENT, prefix_);
    TestRelease two = make_release("2");
    protocol::InstallRequest request;
    request.manifest = two.text();
    head.send("install", request);
    auto need = head.receive();
    ASSERT_TRUE(need);
    ASSERT_EQ(need->type, "need");
    std::string digest = need->body["digests"][0];
    send(head, digest, two.contents.at(digest));
    auto result = head.result();
    ASSERT_TRUE(result);
    EXPECT_EQ(result->result, "failed");
    EXPECT_THAT(result->error.what, HasSubstr(message));
    EXPECT_EQ(result->to, make_release("1").id());
    head.leave();
    head.wait();
    EXPECT_EQ(snapshot(prefix_), before_);
  }

  std::map<std::string, std::string> before_;
};

TEST_F(BadStream, Flipped_bit) {
  expect_failure(
      [](Head& head, const std::string& digest, std::string content) {
        content[3] = static_cast<char>(content[3] ^ 1);
        head.send_file(digest, content);
        head.send("commit", nullptr);
      },
      "SHA-256");
}

TEST_F(BadStream, Flipped_bit_then_the_connection_goes_on_in_step) {
  Head head(DSI_AGENT, prefix_);
  TestRelease two = make_release("2");
  protocol::InstallRequest request;
  request.manifest = two.text();
  head.send("install", request);
  auto need = head.receive();
  std::string digest = need->body["digests"][0];
  head.send_file(digest, std::string(two.contents.at(digest).size(), 'x'));
  head.send("commit", nullptr);
  EXPECT_EQ(head.result()->result, "failed");
  auto again = head.install(two);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->result, "installed");
}

TEST_F(BadStream, Zip_bomb) {
  expect_failure(
      [](Head& head, const std::string& digest, const std::string& content) {
        std::string bomb = compress(std::string(100 << 20, '\0'));
        head.send("file", protocol::FileHeader{digest, content.size(), bomb.size(), {}});
        head.send_raw(protocol::data_frame(bomb));
      },
      "larger than");
}

TEST_F(BadStream, Truncated_stream) {
  expect_failure(
      [](Head& head, const std::string& digest, const std::string& content) {
        std::string wire = compress(content);
        wire.resize(wire.size() - 3);
        head.send("file", protocol::FileHeader{digest, content.size(), wire.size(), {}});
        head.send_raw(protocol::data_frame(wire));
      },
      "cut off");
}

TEST_F(BadStream, Data_after_the_end) {
  expect_failure(
      [](Head& head, const std::string& digest, const std::string& content) {
        std::string wire = compress(content) + "more";
        head.send("file", protocol::FileHeader{digest, content.size(), wire.size(), {}});
        head.send_raw(protocol::data_frame(wire));
      },
      "data follows");
}

TEST_F(BadStream, Wrong_size_announced) {
  expect_failure(
      [](Head& head, const std::string& digest, const std::string& content) {
        head.send("file", protocol::FileHeader{digest, content.size() + 1, 10, {}});
      },
      "was announced where the manifest has");
}

TEST_F(BadStream, More_data_than_announced) {
  expect_failure(
      [](Head& head, const std::string& digest, const std::string& content) {
        std::string wire = compress(content);
        head.send("file", protocol::FileHeader{digest, content.size(), wire.size() - 4, {}});
        head.send_raw(protocol::data_frame(wire));
      },
      "longer than was announced");
}

TEST_F(BadStream, File_that_nobody_asked_for) {
  expect_failure([](Head& head, const std::string&,
                    const std::string& content) { head.send_file(sha256_hex("evil"), content); },
                 "nobody asked for");
}

TEST_F(BadStream, Commit_too_early) {
  expect_failure(
      [](Head& head, const std::string&, const std::string&) { head.send("commit", nullptr); },
      "1 files have not come");
}

TEST_F(BadStream, Unknown_message_in_the_middle) {
  expect_failure(
      [](Head& head, const std::string&, const std::string&) { head.send("dance", nullptr); },
      "\"dance\"");
}

TEST_F(BadStream, Message_where_data_is_due) {
  expect_failure(
      [](Head& head, const std::string& digest, const std::string& content) {
        head.send("file", protocol::FileHeader{digest, content.size(), 10, {}});
        head.send("commit", nullptr);
      },
      "a message came");
}

TEST_F(BadStream, Out_of_step) {
  expect_failure([](Head& head, const std::string&,
                    const std::string&) { head.send_raw("this is no frame at all"); },
                 "out of step");
}

TEST_F(AgentTest, Unknown_and_malformed_requests_are_answered) {
  Head head(DSI_AGENT, prefix_);
  head.send("dance", nullptr);
  EXPECT_THAT(head.result()->error.what, HasSubstr("knows no request \"dance\""));
  head.send("install", {{"run", 5}});
  EXPECT_THAT(head.result()->error.what, HasSubstr("malformed"));
  std::string frame = protocol::data_frame("no JSON at all");
  frame[4] = 'J';
  head.send_raw(frame);
  auto last = head.result();
  ASSERT_TRUE(last);
  EXPECT_EQ(last->result, "failed");
  EXPECT_FALSE(fs::exists(prefix_));
}

TEST_F(AgentTest, Strict_does_not_switch_to_a_release_with_a_broken_op) {
  TestRelease good = make_release("1");
  ASSERT_EQ(install(good), "installed");
  auto before = snapshot(prefix_);
  TestRelease bad = make_release("2");
  bad.add_op("wrong", kOps / "libds_wrong.so");
  protocol::InstallRequest strict;
  strict.strict = true;
  EXPECT_EQ(install(bad, strict), "failed");
  EXPECT_THAT(last_.error.what, HasSubstr("wrong on cpu is wrong"));
  EXPECT_EQ(last_.to, good.id());
  EXPECT_EQ(status_of("wrong"), "wrong");
  EXPECT_EQ(snapshot(prefix_), before);
  EXPECT_EQ(install(bad), "installed") << "without strict it is";
  EXPECT_EQ(install(good, strict), "installed");
  // The previous release is not thrown away by a strict attempt to go there.
  EXPECT_EQ(install(bad, strict), "failed");
  EXPECT_TRUE(fs::exists(prefix_ / "releases" / bad.id()));
}

TEST_F(AgentTest, A_file_size_limit_stops_it_before_anything_changed) {
  ASSERT_EQ(install(make_release("1")), "installed");
  auto before = snapshot(prefix_);
  TestRelease two = make_release("2");
  std::string noise(300'000, 'x');
  two.add_file("lib/large", noise);
  Head head(DSI_AGENT, prefix_, {{}, [] {
                                   rlimit limit{100'000, 100'000};
                                   ::setrlimit(RLIMIT_FSIZE, &limit);
                                 }});
  auto result = head.install(two);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->result, "failed");
  EXPECT_THAT(result->error.what, HasSubstr("File too large"));
  EXPECT_EQ(snapshot(prefix_), before);
}

// A small file system of its own, where this user may mount one.
class SmallDisk : public AgentTest {
 protected:
  void mount(const char* options, unsigned long flags = 0) {
    disk_ = folder_.path() / "disk";
    fs::create_directory(disk_);
    if (::mount("tmpfs", disk_.c_str(), "tmpfs", flags, options) != 0) {
      GTEST_SKIP() << "this user may not mount a tmpfs";
    }
    mounted_ = true;
    prefix_ = disk_ / "ds-ops";
  }
  void TearDown() override {
    if (mounted_) ::umount2(disk_.c_str(), MNT_DETACH);
  }
  fs::path disk_;
  bool mounted_ = false;
};

TEST_F(SmallDisk, Too_little_space_is_found_before_a_byte_is_sent) {
  mount("size=2m");
  if (!mounted_) return;
  ASSERT_EQ(install(make_release("1")), "installed") << last_.error.what;
  auto before = snapshot(prefix_);
  TestRelease two = make_release("2");
  two.add_file("lib/large", std::string(3 << 20, 'x'));
  EXPECT_EQ(install(two), "failed");
  EXPECT_EQ(files_sent_, 0u);
  EXPECT_THAT(last_.error.what, HasSubstr("bytes free; the release needs 4,50"));
  EXPECT_EQ(snapshot(prefix_), before);
}

TEST_F(SmallDisk, Too_few_inodes_are_found_before_a_byte_is_sent) {
  mount("size=20m,nr_inodes=40");
  if (!mounted_) return;
  TestRelease release = make_release("1");
  for (int i = 0; i < 40; ++i) {
    release.add_file("share/" + std::to_string(100 + i), std::to_string(i));
  }
  EXPECT_EQ(install(release), "failed");
  EXPECT_EQ(files_sent_, 0u);
  EXPECT_THAT(last_.error.what, HasSubstr("inodes free"));
  EXPECT_FALSE(fs::exists(prefix_));
}

TEST_F(SmallDisk, A_disk_that_fills_at_any_point_leaves_the_old_release) {
  mount("size=4m");
  if (!mounted_) return;
  TestRelease one = make_release("1");
  TestRelease two = make_release("2");
  for (int i = 0; i < 10; ++i)
    two.add_file("share/" + std::to_string(i), std::string(8192, 'a' + i));
  ASSERT_EQ(install(one), "installed");
  auto before = snapshot(prefix_);
  // The agent has seen enough space and asks; then somebody else fills the disk to so many pages.
  bool done = false;
  for (int free_pages = 0; free_pages < 64 && !done; ++free_pages) {
    Head head(DSI_AGENT, prefix_);
    protocol::InstallRequest request;
    request.manifest = two.text();
    head.send("install", request);
    auto need = head.receive();
    ASSERT_TRUE(need);
    ASSERT_EQ(need->type, "need");
    std::uint64_t left = 4096u * static_cast<unsigned>(free_pages);
    fs::space_info space = fs::space(disk_);
    write(disk_ / "filler",
          std::string(space.available - std::min<std::uint64_t>(left, space.available), 'f'));
    for (const auto& digest : need->body["digests"]) {
      head.send_file(digest, two.contents.at(digest));
    }
    head.send("commit", nullptr);
    auto result = head.result();
    ASSERT_TRUE(result) << free_pages;
    head.leave();
    head.wait();
    fs::remove(disk_ / "filler");
    done = result->result == "installed";
    if (!done) {
      EXPECT_THAT(result->error.what, HasSubstr("No space left on device")) << free_pages;
      EXPECT_EQ(snapshot(prefix_), before) << free_pages;
    }
  }
  EXPECT_TRUE(done);
  expect_consistent(prefix_);
}

TEST_F(SmallDisk, A_noexec_file_system_is_refused) {
  mount("size=4m", MS_NOEXEC);
  if (!mounted_) return;
  EXPECT_EQ(install(make_release("1")), "failed");
  EXPECT_THAT(last_.error.what, HasSubstr("noexec"));
  EXPECT_FALSE(fs::exists(prefix_));
}

TEST_F(SmallDisk, A_read_only_file_system_is_an_error_that_names_it) {
  mount("size=4m");
  if (!mounted_) return;
  ASSERT_EQ(install(make_release("1")), "installed");
  ASSERT_EQ(::mount("tmpfs", disk_.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr), 0);
  EXPECT_EQ(install(make_release("2")), "failed");
  EXPECT_THAT(last_.error.what, HasSubstr("Read-only file system"));
  EXPECT_EQ(last_.to, make_release("1").id());
  Head head(DSI_AGENT, prefix_);
  EXPECT_EQ(head.report()->ops[0].status, "ok") << "reading goes on";
}

TEST_F(AgentTest, A_folder_without_permission_is_an_error_that_names_it) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  fs::create_directory(prefix_);
  fs::permissions(prefix_, fs::perms(0555));
  EXPECT_EQ(install(make_release("1")), "failed");
  EXPECT_THAT(last_.error.what, HasSubstr("Permission denied"));
  EXPECT_THAT(last_.error.help, HasSubstr("--prefix"));
  fs::permissions(prefix_, fs::perms(0755));
}

TEST_F(AgentTest, A_held_lock_is_waited_for_and_its_holder_is_named) {
  TestRelease release = make_release("1");
  Head first(DSI_AGENT, prefix_);
  protocol::InstallRequest request;
  request.manifest = release.text();
  request.run = "run-7";
  request.by = "alice@head1";
  first.send("install", request);
  ASSERT_EQ(first.receive()->type, "need");  // It holds the lock now, and waits for files.

  protocol::InstallRequest impatient;
  impatient.lock_timeout_s = 1;
  EXPECT_EQ(install(release, impatient), "failed");
  EXPECT_THAT(last_.error.what, HasSubstr("locked by run run-7 of alice@head1"));
  EXPECT_THAT(last_.error.what, HasSubstr("process " + std::to_string(first.pid())));

  // The holder dies: the next one gets the lock at once.
  ::kill(first.pid(), SIGKILL);
  first.wait();
  EXPECT_EQ(install(release, impatient), "installed") << last_.error.what;
}

TEST_F(AgentTest, A_host_that_shares_the_prefix_waits_for_its_own_run_however_long_it_takes) {
  TestRelease release = make_release("1");
  Head first(DSI_AGENT, prefix_);
  protocol::InstallRequest request;
  request.manifest = release.text();
  request.run = "run-7";
  request.lock_timeout_s = 1;
  first.send("install", request);
  ASSERT_EQ(first.receive()->type, "need");

  Head second(DSI_AGENT, prefix_);
  second.send("install", request);
  for (int i = 0; i < 2; ++i) {
    auto waiting = second.receive();
    ASSERT_TRUE(waiting);
    ASSERT_EQ(waiting->type, "stage") << waiting->body;
    EXPECT_EQ(waiting->body.at("stage"), "waiting");
  }
  first.leave();
  first.wait();
  auto need = second.receive();
  while (need && need->type == "stage") need = second.receive();
  ASSERT_TRUE(need);
  EXPECT_EQ(need->type, "need") << need->body;
}

TEST_F(AgentTest, A_head_that_leaves_while_waiting_for_the_lock_is_noticed) {
  Head first(DSI_AGENT, prefix_);
  protocol::InstallRequest request;
  request.manifest = make_release("1").text();
  first.send("install", request);
  ASSERT_EQ(first.receive()->type, "need");
  Head second(DSI_AGENT, prefix_);
  request.lock_timeout_s = 3600;
  second.send("install", request);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  second.leave();
  second.wait();  // The test's time limit is what fails it.
}

TEST_F(AgentTest, Two_installs_at_once_into_one_prefix_both_succeed) {
  TestRelease releases[] = {make_release("1"), make_release("2")};
  std::string results[2];
  std::thread runs[2];
  for (int i = 0; i < 2; ++i) {
    runs[i] = std::thread([&, i] {
      Head head(DSI_AGENT, prefix_);
      auto result = head.install(releases[i]);
      results[i] = result ? result->result + result->error.what : "no result";
    });
  }
  for (std::thread& run : runs) run.join();
  EXPECT_EQ(results[0], "installed");
  EXPECT_EQ(results[1], "installed");
  expect_consistent(prefix_);
  EXPECT_THAT(leftovers(prefix_), IsEmpty());
}

TEST_F(AgentTest, A_head_that_dies_at_any_message_leaves_the_old_release_or_the_new) {
  TestRelease one = make_release("1");
  TestRelease two = make_release("2");
  two.add_file("lib/more", "more");
  ASSERT_EQ(install(one), "installed");
  // From the same start each time: what came whole before a head left is not asked for again.
  fs::path start = folder_.path() / "start";
  fs::rename(prefix_, start);
  bool done = false;
  int writes = 1;
  for (; writes < 20 && !done; ++writes) {
    copy_prefix(start);
    {
      Head head(DSI_AGENT, prefix_);
      head.leave_after(writes);
      done = head.install(two).has_value();
      head.leave();
      EXPECT_TRUE(WIFEXITED(head.wait()));
    }
    expect_consistent(prefix_);
    EXPECT_THAT(leftovers(prefix_), IsEmpty()) << writes;
    if (!done) {
      EXPECT_EQ(current(prefix_), one.id()) << writes;
    }
  }
  EXPECT_TRUE(done);
  EXPECT_GT(writes, 6);
  EXPECT_EQ(current(prefix_), two.id());
}

TEST_F(AgentTest, The_running_agent_stays_in_the_store) {
  ASSERT_EQ(install(make_release("1")), "installed");
  std::string digest = *sha256_file(DSI_AGENT);
  auto own = prefix_ / "store" / (digest + ".x");
  fs::copy_file(DSI_AGENT, own);
  fs::permissions(own, fs::perms(0755));
  auto compressed = prefix_ / "store" / (digest + ".lzma");
  write(compressed, "as it came");
  auto foreign = prefix_ / "store" / (std::string(64, 'f') + ".lzma");
  write(foreign, "of an agent that another run may be about to start");
  Head head(own.string(), prefix_);
  auto result = head.install(make_release("2"));
  ASSERT_TRUE(result);
  EXPECT_EQ(result->result, "installed");
  EXPECT_TRUE(fs::exists(own));
  EXPECT_TRUE(fs::exists(compressed));
  EXPECT_TRUE(fs::exists(foreign));
  TestRelease three = make_release("3");
  three.add_file("bin/ds-report", slurp(DSI_AGENT), 0755);
  auto with_report = head.install(three);
  ASSERT_TRUE(with_report);
  EXPECT_EQ(with_report->result, "installed");
  EXPECT_EQ(head.files_sent(), 2u) << "the agent is in the store already";
  auto gone = head.uninstall();
  ASSERT_TRUE(gone);
  EXPECT_EQ(gone->result, "uninstalled") << gone->error.what;
  EXPECT_FALSE(fs::exists(prefix_));
}

}  // namespace
}  // namespace dsi::testing

// The stream on a node: gone on with, patched, refused, and what it needs of the node.

#include <sys/mount.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>

#include "tests/agent/swarm_fixture.h"

namespace dsi::testing {
namespace {

using agent::PeerLink;
using agent::RecordType;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;

TEST_F(SwarmTest, A_run_that_was_killed_goes_on_with_the_chunks_that_are_there) {
  TestRelease release = large_release();
  TestStream stream = stream_of(release, 16384, 2);
  std::uint32_t chunks = stream.index.chunks();
  {
    TestSwarm swarm(stream);
    ASSERT_NO_FATAL_FAILURE(start(swarm, release, 1));
    swarm.send_index(at(swarm, 0));
    swarm.send_chunks(at(swarm, 0), 0, chunks / 2);
    swarm.send_chunks(at(swarm, 0), chunks / 2 + 3, chunks / 2 + 5);
    ASSERT_TRUE(swarm.wait([&] { return at(swarm, 0).chunks() == chunks / 2 + 2; }));
    at(swarm, 0).head->kill();
    at(swarm, 0).head->wait();
  }
  // One of them is damaged meanwhile, and there are leftovers of other runs.
  fs::path incoming = prefix_of(0) / "incoming" / stream.request().index_digest.substr(0, 16);
  {
    std::fstream file(incoming / "stream", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(16384 * 3 + 100);
    file.put('!');
  }
  fs::create_directories(prefix_of(0) / "incoming" / "0123456789abcdef");
  write(prefix_of(0) / "incoming" / "0123456789abcdef" / "stream", "x");
  write(prefix_of(0) / "incoming" / "junk", "x");

  TestSwarm swarm(stream);
  ASSERT_NO_FATAL_FAILURE(start(swarm, release, 1));
  EXPECT_FALSE(fs::exists(prefix_of(0) / "incoming" / "0123456789abcdef"));
  EXPECT_FALSE(fs::exists(prefix_of(0) / "incoming" / "junk"));
  std::vector<bool> have(chunks);
  std::string digits = at(swarm, 0).joined->have;
  ASSERT_EQ(digits.size(), 2 * ((chunks + 7) / 8));
  for (std::uint32_t i = 0; i < chunks; ++i) {
    int byte = std::stoi(digits.substr(i / 8 * 2, 2), nullptr, 16);
    have[i] = (byte >> i % 8 & 1) != 0;
    bool expected = (i < chunks / 2 && i != 3) || (i >= chunks / 2 + 3 && i < chunks / 2 + 5);
    EXPECT_EQ(have[i], expected) << i;
    if (!have[i]) swarm.send_chunk(at(swarm, 0), i);
  }
  ASSERT_TRUE(swarm.wait_for_results());
  expect_installed(at(swarm, 0), release);
}

TEST_F(SwarmTest, A_run_whose_head_left_is_gone_on_with_and_another_release_ends_it) {
  TestRelease release = large_release();
  TestStream stream = stream_of(release, 16384, 2);
  for (int i = 0; i < 2; ++i) {
    TestSwarm swarm(stream);
    ASSERT_NO_FATAL_FAILURE(start(swarm, release, 1));
    EXPECT_EQ(at(swarm, 0).joined->have.empty(), i == 0);
    if (i == 0) swarm.send_index(at(swarm, 0));
    swarm.send_chunks(at(swarm, 0), 0, 20);
    ASSERT_TRUE(swarm.wait([&] { return at(swarm, 0).chunks() == 20; }));
    at(swarm, 0).head->leave();
    at(swarm, 0).head->wait();
    EXPECT_TRUE(fs::exists(prefix_of(0) / "incoming"));
    EXPECT_THAT(leftovers(prefix_of(0)), IsEmpty());
  }
  prefix_ = prefix_of(0);
  ASSERT_EQ(install(make_release("9")), "installed") << last_.error.what;
  EXPECT_FALSE(fs::exists(prefix_ / "incoming"));
}

TEST_F(SwarmTest, A_patch_needs_its_base_and_the_node_names_those_it_has) {
  TestRelease one = make_release("1");
  std::string old_text = random_text(1u << 20, 1);
  one.add_file("lib/large.bin", old_text);
  TestRelease two = make_release("1");
  std::string new_text = old_text;
  new_text.replace(500'000, 20, "something else, long");
  two.add_file("lib/large.bin", new_text);
  two.add_file("lib/new.bin", "new\n");
  std::string old_digest = sha256_hex(old_text);
  std::string new_digest = sha256_hex(new_text);

  TestStream patched;
  patched.add(new_digest, new_text.size(), compress_patch(old_text, new_text), old_digest);
  patched.add(sha256_hex("new\n"), 4, compress("new\n"));
  // For other nodes of the swarm, who need more than this one.
  patched.add(sha256_hex("other"), 5, compress("other"));
  patched.cut(16384, 1);
  EXPECT_LT(patched.bytes.size(), 10'000u);

  for (int i = 0; i < 2; ++i) {
    prefix_ = prefix_of(i);
    ASSERT_EQ(install(one), "installed");
  }
  {
    TestSwarm swarm(patched);
    ASSERT_NO_FATAL_FAILURE(start(swarm, two, 1));
    EXPECT_THAT(at(swarm, 0).need->bases, ElementsAre(Pair(new_digest, old_digest)));
    swarm.send_index(at(swarm, 0));
    swarm.send_chunks(at(swarm, 0));
    ASSERT_TRUE(swarm.wait_for_results());
    expect_installed(at(swarm, 0), two);
  }
  // The same from the head alone.
  {
    Head head(DSI_AGENT, prefix_of(1));
    protocol::InstallRequest request;
    request.manifest = two.text();
    head.send("install", request);
    auto need = head.receive();
    ASSERT_TRUE(need && need->type == "need");
    std::string wire = compress_patch(old_text, new_text);
    head.send("file", protocol::FileHeader{new_digest, new_text.size(), wire.size(), old_digest});
    head.send_raw(protocol::data_frame(wire));
    head.send_file(sha256_hex("new\n"), "new\n");
    head.send("commit", nullptr);
    auto result = head.result();
    ASSERT_TRUE(result);
    EXPECT_EQ(result->result, "installed") << result->error.what;
  }
  // Who does not have the base says so and keeps what it has.
  TestStream for_all;
  for (const auto& [digest, content] : two.contents) {
    bool patch = digest == new_digest;
    for_all.add(digest, content.size(),
                patch ? compress_patch(old_text, new_text) : compress(content),
                patch ? old_digest : "");
  }
  for_all.cut(16384, 1);
  TestSwarm swarm(for_all);
  SwarmNode& bare = swarm.add(DSI_AGENT, prefix_of(2));
  swarm.listen(bare);
  swarm.join(bare, two);
  ASSERT_TRUE(bare.need);
  EXPECT_THAT(bare.need->bases, IsEmpty());
  swarm.send_index(bare);
  swarm.send_chunks(bare);
  ASSERT_TRUE(swarm.wait_for_results());
  EXPECT_EQ(bare.result->result, "failed");
  EXPECT_THAT(bare.result->error.what, HasSubstr("a file that is not in the store"));
  EXPECT_EQ(current(bare.prefix), "");
}

TEST_F(SwarmTest, A_stream_that_does_not_give_the_files_is_refused) {
  TestRelease release = large_release();
  TestStream good = stream_of(release, 16384, 1);
  auto failure = [&](const TestStream& stream) {
    TestSwarm swarm(stream);
    SwarmNode& node = swarm.add(DSI_AGENT, prefix_of(0));
    swarm.listen(node);
    swarm.join(node, release);
    swarm.send_index(node);
    swarm.send_chunks(node);
    swarm.wait_for_results();
    EXPECT_THAT(snapshot(prefix_of(0)), IsEmpty()) << "nothing half done";
    return node.result ? node.result->error.what : "no result";
  };
  TestStream stream = good;
  stream.index.objects.pop_back();
  stream.bytes.resize(stream.index.stream_size());
  stream.cut(16384, 1);
  EXPECT_EQ(failure(stream), "the swarm brings 1 files too few");
  stream = good;
  stream.index.objects[0].size += 1;
  stream.cut(16384, 1);
  EXPECT_THAT(failure(stream), HasSubstr("where the manifest has"));
  stream = good;
  std::swap(stream.bytes[40], stream.bytes[stream.bytes.size() - 40]);
  stream.cut(16384, 1);
  EXPECT_THAT(failure(stream), Not(HasSubstr("no result")));
  stream = good;
  stream.encoded = "nonsense";
  EXPECT_THAT(failure(stream), HasSubstr("no index"));
}

TEST_F(SwarmTest, A_head_that_speaks_of_a_swarm_without_listen_gets_an_error) {
  TestRelease release = large_release();
  TestSwarm swarm(stream_of(release, 16384, 1));
  SwarmNode& node = swarm.add(DSI_AGENT, prefix_of(0));
  swarm.join(node, release);
  ASSERT_TRUE(node.result);
  EXPECT_THAT(node.result->error.what, HasSubstr("never said \"listen\""));
}

TEST_F(SwarmTest, Few_descriptors_are_enough_or_are_named) {
  TestRelease release = large_release(1u << 20);
  TestSwarm swarm(stream_of(release, 16384, 2));
  HeadSettings few;
  few.in_child = [] {
    rlimit limit{40, 40};
    ::setrlimit(RLIMIT_NOFILE, &limit);
  };
  SwarmNode& parent = swarm.add(DSI_AGENT, prefix_of(0), few);
  swarm.listen(parent);
  ASSERT_NE(parent.listening.port, 0) << parent.listening.error;
  swarm.join(parent, release);
  swarm.send_index(parent);
  // All that can be taken up is taken up by others: they go when somebody comes who has the key.
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 60; ++i) silent.push_back(connect_to(parent.listening.port));
  SwarmNode& child = swarm.add(DSI_AGENT, prefix_of(1));
  swarm.listen(child);
  swarm.join(child, release);
  swarm.follow_all(child, &parent);
  swarm.send_chunks(parent);
  ASSERT_TRUE(swarm.wait_for_results());
  EXPECT_THAT(child.faults, IsEmpty());
  expect_installed(parent, release);
  expect_installed(child, release);

  // Real children leave no room, and whoever comes then is told so.
  std::vector<PeerLink> children;
  auto digest = distribute::hash_of(swarm.stream.encoded);
  int refused = 0;
  for (int i = 0; i < 40; ++i) {
    UniqueFd fd = connect_to(parent.listening.port);
    ASSERT_TRUE(fd);
    PeerLink link(std::move(fd), PeerLink::Role::kClient, *agent::run_key(kRunKey));
    BadPeer::send(link);
    BadPeer::wait_until_open(link);
    if (link.state() == PeerLink::State::kOpen) {
      link.put(RecordType::kHello,
               agent::number_bytes(100) +
                   std::string(reinterpret_cast<const char*>(digest.data()), digest.size()));
      EXPECT_TRUE(BadPeer::wait_for(link, RecordType::kHello));
      children.push_back(std::move(link));
    } else {
      refused += link.state() == PeerLink::State::kRefused ? 1 : 0;
    }
  }
  EXPECT_GT(children.size(), 2u);
  EXPECT_EQ(children.size() + static_cast<std::size_t>(refused), 40u);
  EXPECT_GT(refused, 2);
}

TEST_F(SwarmTest, With_no_descriptor_left_it_says_so) {
  if (DSI_SANITIZED != 0) GTEST_SKIP() << "the sanitizer needs a descriptor to look at memory";
  TestSwarm swarm({});
  HeadSettings none;
  none.in_child = [] {
    rlimit limit{4, 4};
    ::setrlimit(RLIMIT_NOFILE, &limit);
  };
  SwarmNode& node = swarm.add(DSI_AGENT, prefix_of(0), none);
  swarm.listen(node);
  EXPECT_EQ(node.listening.port, 0);
  EXPECT_THAT(node.listening.error, HasSubstr("Too many open files"));
  node.head->send("report", protocol::ReportRequest{});
  EXPECT_TRUE(swarm.wait_for_results()) << "it goes on without";
}

TEST_F(SwarmTest, A_limit_on_the_rate_is_kept_by_who_sends) {
  TestRelease release = make_release("1");
  release.add_file("lib/large.bin", random_text(300'000, 3));
  TestSwarm swarm(stream_of(release, 16384, 1));
  for (int i = 0; i < 2; ++i) {
    SwarmNode& node = swarm.add(DSI_AGENT, prefix_of(i));
    swarm.listen(node, kRunKey, {}, 200'000);
    swarm.join(node, release);
  }
  swarm.send_index(at(swarm, 0));
  swarm.send_chunks(at(swarm, 0));
  auto start = std::chrono::steady_clock::now();
  swarm.follow_all(at(swarm, 1), &at(swarm, 0));
  ASSERT_TRUE(swarm.wait_for_results());
  // Never faster, however slow the machine: the burst and one chunk come on top of the rate.
  double least = (static_cast<double>(swarm.stream.bytes.size()) - 20'000 - 16'384) / 200'000;
  EXPECT_GE(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), least);
}

class SwarmDisk : public SwarmTest {
 protected:
  void mount(const std::string& options) {
    fs::create_directories(disk_);
    if (::mount("tmpfs", disk_.c_str(), "tmpfs", 0, options.c_str()) != 0) {
      GTEST_SKIP() << "this user may not mount a tmpfs";
    }
    mounted_ = true;
  }
  void TearDown() override {
    if (mounted_) ::umount2(disk_.c_str(), MNT_DETACH);
  }
  // A node on the disk, joined and with the index.
  SwarmNode& begin(TestSwarm& swarm, const TestRelease& release) {
    SwarmNode& node = swarm.add(DSI_AGENT, disk_ / "ops");
    swarm.listen(node);
    swarm.join(node, release);
    EXPECT_TRUE(node.joined);
    swarm.send_index(node);
    return node;
  }
  fs::path disk_ = folder_.path() / "disk";
  bool mounted_ = false;
};

TEST_F(SwarmDisk, A_disk_too_small_for_stream_and_files_is_one_clear_error) {
  ASSERT_NO_FATAL_FAILURE(mount("size=6m"));
  if (IsSkipped()) return;
  TestRelease release = large_release();
  TestSwarm swarm(stream_of(release, 16384, 1));
  SwarmNode& node = begin(swarm, release);
  swarm.send_chunks(node);
  ASSERT_TRUE(swarm.wait_for_results());
  EXPECT_EQ(node.result->result, "failed");
  EXPECT_THAT(node.result->error.what, HasSubstr("bytes free; the release needs"));
  EXPECT_FALSE(fs::exists(disk_ / "ops"));
}

TEST_F(SwarmDisk, A_disk_that_fills_while_chunks_come_is_one_clear_error) {
  ASSERT_NO_FATAL_FAILURE(mount("size=9m"));
  if (IsSkipped()) return;
  TestRelease release = large_release();
  TestSwarm swarm(stream_of(release, 16384, 1));
  SwarmNode& node = begin(swarm, release);
  // Until files are made of the stream: the look at the space that is free is over then.
  swarm.send_chunks(node, 0, 64);
  ASSERT_TRUE(swarm.wait([&] {
    fs::directory_iterator store(disk_ / "ops/store");
    return std::any_of(fs::begin(store), fs::end(store), [](const auto& file) {
      std::error_code gone;  // It was renamed meanwhile.
      auto size = file.file_size(gone);
      return !gone && size > 0;
    });
  }));
  write(disk_ / "other", std::string(5u << 20, 'x'));
  swarm.send_chunks(node, 64);
  ASSERT_TRUE(swarm.wait_for_results());
  EXPECT_EQ(node.result->result, "failed");
  EXPECT_THAT(node.result->error.what, HasSubstr("No space left on device"));
  EXPECT_THAT(node.result->error.help, HasSubstr("free space"));
  EXPECT_FALSE(fs::exists(disk_ / "ops"));
}

}  // namespace
}  // namespace dsi::testing

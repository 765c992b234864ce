// What the head decides about a payload's bytes: objects, patches, swarms. The nodes are played
// here.

#include "orchestrator/distribute/distributor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <zstd.h>

#include <future>
#include <set>
#include <thread>

#include "orchestrator/base/file.h"
#include "orchestrator/base/sha256.h"
#include "orchestrator/patch.h"
#include "tests/unit/temp_folder.h"

namespace dsi::distribute {
namespace {

namespace fs = std::filesystem;
using testing::IsEmpty;
using testing::SizeIs;

std::string noise(std::size_t size, std::uint32_t seed) {
  std::string text(size, '\0');
  for (char& c : text) {
    seed = seed * 1664525 + 1013904223;
    c = static_cast<char>(seed >> 24);
  }
  return text;
}

std::string patched(const std::string& base, const std::string& patch, std::size_t size) {
  std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> context(ZSTD_createDCtx(), ZSTD_freeDCtx);
  ZSTD_DCtx_setParameter(context.get(), ZSTD_d_windowLogMax, 31);
  ZSTD_DCtx_refPrefix(context.get(), base.data(), base.size());
  std::string out(size, '\0');
  std::size_t n =
      ZSTD_decompressDCtx(context.get(), out.data(), out.size(), patch.data(), patch.size());
  EXPECT_FALSE(ZSTD_isError(n)) << ZSTD_getErrorName(n);
  return out;
}

class DistributorTest : public testing::Test {
 protected:
  // A release with one file of that content.
  Payload release_of(const std::string& name, const std::string& text) {
    folder_.write(name + "/data", text);
    auto payload = make_payload(*list_files(folder_.path() / name), {}, {});
    EXPECT_TRUE(payload);
    return *payload;
  }
  protocol::Need need_of(const Payload& payload) {
    protocol::Need need;
    for (const auto& [digest, path] : payload.content) need.digests.push_back(digest);
    return need;
  }

  TempFolder folder_;
  ContentCache cache_{folder_.path() / "content"};
};

TEST_F(DistributorTest, A_patch_gives_the_new_file_to_who_has_the_old_one) {
  std::string old = noise(300'000, 1);
  std::string text = old.substr(0, 150'000) + "one line more" + old.substr(150'000);
  folder_.write("old", old);
  folder_.write("new", text);
  fs::path patch = folder_.path() / "patch";
  ASSERT_TRUE(make_patch(folder_.path() / "old", folder_.path() / "new", patch));
  EXPECT_LT(fs::file_size(patch), 200u);
  EXPECT_EQ(patched(old, *read_file(patch), text.size()), text);
}

TEST_F(DistributorTest, Sends_a_patch_where_the_old_file_is_known_and_the_file_where_not) {
  std::string old = noise(300'000, 1);
  Payload before = release_of("before", old);
  Payload payload = release_of("after", old + "more");
  ASSERT_TRUE(cache_.keep(before));
  WireFiles wire(payload, folder_.path() / "wire");
  Distributor distributor(payload, wire, cache_);
  std::string digest = payload.content.begin()->first;
  std::string base = before.content.begin()->first;

  protocol::Need need = need_of(payload);
  ObjectFile whole = distributor.object_for(digest, need).value();
  EXPECT_EQ(whole.object.base, "");
  EXPECT_GT(whole.object.wire_size, 299'000u);
  need.bases[digest] = base;
  ObjectFile patch = distributor.object_for(digest, need).value();
  EXPECT_EQ(patch.object.base, base);
  EXPECT_LT(patch.object.wire_size, 200u);
  EXPECT_EQ(patch.object.size, old.size() + 4);
  need.bases[digest] = std::string(64, 'e');  // Nobody here knows it.
  EXPECT_EQ(distributor.object_for(digest, need).value().object.base, "");
}

TEST_F(DistributorTest, A_patch_that_saves_nothing_is_not_sent) {
  Payload before = release_of("before", noise(50'000, 1));
  Payload payload = release_of("after", noise(50'000, 2));
  ASSERT_TRUE(cache_.keep(before));
  WireFiles wire(payload, folder_.path() / "wire");
  Distributor distributor(payload, wire, cache_);
  protocol::Need need = need_of(payload);
  need.bases[need.digests[0]] = before.content.begin()->first;
  EXPECT_EQ(distributor.object_for(need.digests[0], need).value().object.base, "");
}

TEST_F(DistributorTest, A_kept_file_that_was_damaged_counts_as_none) {
  Payload before = release_of("before", noise(1'000, 1));
  ASSERT_TRUE(cache_.keep(before));
  std::string digest = before.content.begin()->first;
  EXPECT_TRUE(cache_.find(digest));
  ASSERT_TRUE(write_file_atomically(folder_.path() / "content" / digest, "other"));
  EXPECT_FALSE(cache_.find(digest));
}

TEST_F(DistributorTest, The_cache_forgets_what_was_used_longest_ago) {
  ContentCache small(folder_.path() / "small", 2'500);
  std::vector<Payload> releases;
  for (std::uint32_t i = 0; i < 4; ++i) {
    releases.push_back(release_of("r" + std::to_string(i), noise(1'000, i)));
    ASSERT_TRUE(small.keep(releases.back()));
    fs::path kept = folder_.path() / "small" / releases.back().content.begin()->first;
    fs::last_write_time(kept, fs::file_time_type::clock::now() - std::chrono::hours(10 - i));
  }
  EXPECT_FALSE(small.find(releases[0].content.begin()->first));
  EXPECT_FALSE(small.find(releases[1].content.begin()->first));
  EXPECT_TRUE(small.find(releases[2].content.begin()->first));
  EXPECT_TRUE(small.find(releases[3].content.begin()->first));
}

TEST_F(DistributorTest, Hosts_with_the_same_need_share_a_swarm_and_others_do_not) {
  std::string old = noise(100'000, 1);
  Payload before = release_of("before", old);
  Payload payload = release_of("after", old + "more");
  ASSERT_TRUE(cache_.keep(before));
  WireFiles wire(payload, folder_.path() / "wire");
  Distributor distributor(payload, wire, cache_);
  protocol::Need fresh = need_of(payload);
  protocol::Need updating = fresh;
  updating.bases[fresh.digests[0]] = before.content.begin()->first;

  distributor.expect(4);
  auto enroll = [&](PeerId peer, const protocol::Need& need) {
    return std::async(std::launch::async, [&distributor, peer, need] {
      return distributor.enroll(peer, need, {}, {}).value();
    });
  };
  auto a = enroll(0, fresh);
  auto b = enroll(1, fresh);
  auto c = enroll(2, updating);
  distributor.excuse(3);
  Swarm* first = a.get();
  EXPECT_EQ(b.get(), first);
  EXPECT_NE(c.get(), first);
  // Who comes later finds its swarm, or gets one.
  EXPECT_EQ(distributor.enroll(7, fresh, {}, {}).value(), first);
  EXPECT_THAT(distributor.stories(), SizeIs(2));
}

TEST_F(DistributorTest, A_stop_ends_the_wait_for_others) {
  Payload payload = release_of("one", "text");
  WireFiles wire(payload, folder_.path() / "wire");
  Distributor distributor(payload, wire, cache_);
  distributor.expect(2);
  std::stop_source stop;
  stop.request_stop();
  EXPECT_FALSE(distributor.enroll(0, need_of(payload), {}, stop.get_token()));
  // It is excused as every host without a swarm is; the other one is waited for all the same.
  distributor.excuse(0);
  EXPECT_FALSE(distributor.complete(false));
  distributor.excuse(1);
  EXPECT_TRUE(distributor.complete(false));
}

// A node that takes what the head sends, chunk by chunk.
struct Node {
  std::map<std::uint32_t, std::string> chunks;
  std::map<std::uint32_t, std::int64_t> parents;
  bool index = false;
};

void serve(Swarm& swarm, PeerId peer, Node& node) {
  for (;;) {
    Step step = swarm.next(peer);
    node.index = node.index || step.index;
    for (const protocol::Follow& follow : step.follow) node.parents[follow.stripe] = follow.parent;
    if (step.soon) {  // Others shall catch up; here they come later.
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
      continue;
    }
    if (!step.chunk) return;
    EXPECT_TRUE(node.index) << "a chunk before the index cannot be checked";
    EXPECT_TRUE(node.chunks.emplace(*step.chunk, swarm.read_chunk(*step.chunk).value()).second);
  }
}

protocol::Have counts_of(const Swarm& swarm, const Node& node) {
  ChunkIndex index = decode_index(swarm.index()).value();
  protocol::Have have;
  have.counts.resize(index.stripes);
  for (const auto& [number, bytes] : node.chunks) ++have.counts[number % index.stripes];
  return have;
}

TEST_F(DistributorTest, One_host_alone_gets_every_chunk_from_the_head_once) {
  std::string text = noise(500'000, 3);
  Payload payload = release_of("one", text);
  WireFiles wire(payload, folder_.path() / "wire");
  Distributor distributor(payload, wire, cache_);
  distributor.expect(1);
  Swarm* swarm = distributor.enroll(0, need_of(payload), {}, {}).value();
  swarm->joined(0, {});
  Node node;
  serve(*swarm, 0, node);
  ChunkIndex index = decode_index(swarm->index()).value();
  ASSERT_EQ(node.chunks.size(), index.chunks());
  std::string stream;
  for (std::uint32_t i = 0; i < index.chunks(); ++i) {
    EXPECT_EQ(hash_of(node.chunks[i]), index.hashes[i]);
    stream += node.chunks[i];
  }
  EXPECT_EQ(stream,
            *read_file(swarm->story().chunks > 0 ? wire.get(payload.content.begin()->first)->path
                                                 : fs::path()));
  EXPECT_EQ(swarm->story().chunks_from_head, index.chunks());
  EXPECT_TRUE(swarm->have(0, counts_of(*swarm, node)));
  EXPECT_EQ(swarm->bytes_done(), swarm->bytes_wanted());
}

TEST_F(DistributorTest, What_an_earlier_run_left_on_the_host_is_not_sent_again) {
  Payload payload = release_of("one", noise(500'000, 3));
  WireFiles wire(payload, folder_.path() / "wire");
  Distributor distributor(payload, wire, cache_);
  distributor.expect(1);
  Swarm* swarm = distributor.enroll(0, need_of(payload), {}, {}).value();
  swarm->joined(0, {.have = "f7"});  // Chunks 0, 1, 2 and 4 to 7.
  Node node;
  serve(*swarm, 0, node);
  EXPECT_TRUE(node.chunks.contains(3));
  for (std::uint32_t there : {0u, 1u, 2u, 4u, 5u, 6u, 7u}) {
    EXPECT_FALSE(node.chunks.contains(there)) << there;
  }
  EXPECT_EQ(node.chunks.size() + 7, decode_index(swarm->index()).value().chunks());
}

TEST_F(DistributorTest, Several_hosts_get_one_copy_from_the_head_among_them) {
  Payload payload = release_of("one", noise(2'000'000, 4));
  WireFiles wire(payload, folder_.path() / "wire");
  Distributor distributor(payload, wire, cache_);
  constexpr PeerId kHosts = 6;
  distributor.expect(kHosts);
  std::vector<std::future<Swarm*>> enrolled;
  for (PeerId peer = 0; peer < kHosts; ++peer) {
    enrolled.push_back(std::async(std::launch::async, [&, peer] {
      protocol::Listening listening{static_cast<std::uint16_t>(4000 + peer), {"10.0.0.1"}, ""};
      return distributor.enroll(peer, need_of(payload), listening, {}).value();
    }));
  }
  Swarm* swarm = nullptr;
  for (auto& one : enrolled) swarm = one.get();
  for (PeerId peer = 0; peer < kHosts; ++peer) swarm->joined(peer, {});
  std::vector<Node> nodes(kHosts);
  std::set<std::uint32_t> sent;
  std::size_t from_head = 0;
  for (PeerId peer = 0; peer < kHosts; ++peer) {
    pollfd wake{swarm->wake(peer), POLLIN, 0};
    EXPECT_EQ(::poll(&wake, 1, 0), 1) << "nobody told host " << peer;
    serve(*swarm, peer, nodes[peer]);
    for (const auto& [number, bytes] : nodes[peer].chunks) sent.insert(number);
    from_head += nodes[peer].chunks.size();
    EXPECT_EQ(nodes[peer].parents.size(), decode_index(swarm->index()).value().stripes);
  }
  EXPECT_EQ(sent.size(), decode_index(swarm->index()).value().chunks());
  EXPECT_EQ(from_head, sent.size());
}

TEST_F(DistributorTest, A_host_whose_only_parent_died_gets_the_rest_from_somewhere) {
  Payload payload = release_of("one", noise(1'000'000, 5));
  WireFiles wire(payload, folder_.path() / "wire");
  Distributor distributor(payload, wire, cache_);
  distributor.expect(2);
  auto other = std::async(std::launch::async, [&] {
    return distributor.enroll(1, need_of(payload), {4001, {"10.0.0.2"}, ""}, {}).value();
  });
  Swarm* swarm = distributor.enroll(0, need_of(payload), {4000, {"10.0.0.1"}, ""}, {}).value();
  ASSERT_EQ(other.get(), swarm);
  for (PeerId peer : {0u, 1u}) swarm->joined(peer, {});
  std::vector<Node> nodes(2);
  for (PeerId peer : {0u, 1u}) serve(*swarm, peer, nodes[peer]);
  swarm->leave(0);
  serve(*swarm, 1, nodes[1]);
  for (const auto& [stripe, parent] : nodes[1].parents) EXPECT_EQ(parent, -1);
  EXPECT_EQ(nodes[1].chunks.size(), decode_index(swarm->index()).value().chunks());
}

}  // namespace
}  // namespace dsi::distribute

#include "orchestrator/bundle.h"

#include <archive.h>
#include <archive_entry.h>
#include <gtest/gtest.h>
#include <zstd.h>

#include <memory>

#include "orchestrator/base/file.h"
#include "orchestrator/base/sha256.h"
#include "tests/unit/temp_folder.h"

namespace dsi {
namespace {

namespace fs = std::filesystem;

// A release of two plain files; ops need real libraries and are tested on real hosts.
Payload payload_in(const TempFolder& folder) {
  folder.write("stage/bin/tool", "#!/bin/sh\n");
  folder.write("stage/python/ds_ops/__init__.py", std::string(100'000, 'x'));
  fs::permissions(folder.path() / "stage/bin/tool", fs::perms::all);
  auto files = list_files(folder.path() / "stage");
  auto payload = make_payload(*files, {}, {{"torch", "1.13.1"}});
  EXPECT_TRUE(payload) << payload.error().what;
  return *payload;
}

// An archive with these entries, as an attacker would write it.
void write_tar(const fs::path& file,
               const std::vector<std::pair<std::string, std::string>>& entries,
               unsigned type = AE_IFREG) {
  archive* out = archive_write_new();
  archive_write_set_format_pax_restricted(out);
  archive_write_add_filter_zstd(out);
  archive_write_open_filename(out, file.c_str());
  for (const auto& [name, text] : entries) {
    archive_entry* entry = archive_entry_new();
    archive_entry_set_pathname(entry, name.c_str());
    archive_entry_set_filetype(entry, name == "manifest.json" ? AE_IFREG : type);
    archive_entry_set_perm(entry, 0644);
    if (type == AE_IFLNK) archive_entry_set_symlink(entry, "/etc/passwd");
    archive_entry_set_size(entry, static_cast<la_int64_t>(text.size()));
    archive_write_header(out, entry);
    archive_write_data(out, text.data(), text.size());
    archive_entry_free(entry);
  }
  archive_write_close(out);
  archive_write_free(out);
}

TEST(Bundle, The_same_files_in_another_folder_give_the_same_bytes) {
  TempFolder one;
  TempFolder two;
  ASSERT_TRUE(write_bundle(payload_in(one), one.path() / "a.tar.zst"));
  ASSERT_TRUE(write_bundle(payload_in(two), two.path() / "b.tar.zst"));
  EXPECT_EQ(*sha256_file(one.path() / "a.tar.zst"), *sha256_file(two.path() / "b.tar.zst"));
}

TEST(Bundle, Comes_back_whole_and_a_second_time_from_the_cache) {
  TempFolder folder;
  Payload payload = payload_in(folder);
  fs::path file = folder.path() / "ops.tar.zst";
  ASSERT_TRUE(write_bundle(payload, file));
  for (int i = 0; i < 2; ++i) {
    auto read = read_bundle(file, folder.path() / "cache");
    ASSERT_TRUE(read) << read.error().what;
    EXPECT_EQ(read->id, payload.id);
    for (const auto& [digest, path] : read->content) EXPECT_EQ(*sha256_file(path), digest);
  }
}

TEST(Bundle, A_cache_that_was_tampered_with_is_made_anew) {
  TempFolder folder;
  fs::path file = folder.path() / "ops.tar.zst";
  ASSERT_TRUE(write_bundle(payload_in(folder), file));
  auto first = read_bundle(file, folder.path() / "cache");
  ASSERT_TRUE(first);
  for (const auto& [digest, path] : first->content) std::ofstream(path) << "tampered";
  auto second = read_bundle(file, folder.path() / "cache");
  ASSERT_TRUE(second) << second.error().what;
  for (const auto& [digest, path] : second->content) EXPECT_EQ(*sha256_file(path), digest);
}

TEST(Bundle, Truncated_at_any_place_it_is_refused) {
  TempFolder folder;
  fs::path file = folder.path() / "ops.tar.zst";
  ASSERT_TRUE(write_bundle(payload_in(folder), file));
  std::string whole = *read_file(file);
  for (std::size_t size : {std::size_t{0}, std::size_t{10}, whole.size() / 2, whole.size() - 20}) {
    fs::path cut = folder.write("cut.tar.zst", whole.substr(0, size));
    auto read = read_bundle(cut, folder.path() / "cache");
    ASSERT_FALSE(read) << size;
    EXPECT_NE(read.error().what.find("cut.tar.zst"), std::string::npos);
    EXPECT_FALSE(read.error().help.empty());
  }
}

TEST(Bundle, Entries_that_the_manifest_does_not_name_are_refused) {
  TempFolder folder;
  std::string manifest = payload_in(folder).text;
  fs::path file = folder.path() / "bad.tar.zst";
  for (std::string name : {"../../escape", "/tmp/escape", "extra"}) {
    write_tar(file, {{"manifest.json", manifest}, {name, "x"}});
    auto read = read_bundle(file, folder.path() / "cache");
    ASSERT_FALSE(read) << name;
    EXPECT_NE(read.error().what.find("does not name"), std::string::npos) << read.error().what;
  }
  EXPECT_FALSE(fs::exists(folder.path() / "escape"));
}

TEST(Bundle, Links_more_bytes_than_said_and_missing_files_are_refused) {
  TempFolder folder;
  std::string manifest = payload_in(folder).text;
  fs::path file = folder.path() / "bad.tar.zst";
  write_tar(file, {{"manifest.json", manifest}, {"bin/tool", ""}}, AE_IFLNK);
  EXPECT_FALSE(read_bundle(file, folder.path() / "cache"));
  write_tar(file, {{"manifest.json", manifest}, {"bin/tool", std::string(1'000'000, 'x')}});
  auto larger = read_bundle(file, folder.path() / "cache");
  ASSERT_FALSE(larger);
  EXPECT_NE(larger.error().what.find("more than the manifest says"), std::string::npos);
  write_tar(file, {{"manifest.json", manifest}});
  EXPECT_FALSE(read_bundle(file, folder.path() / "cache"));
  write_tar(file, {{"bin/tool", "x"}});
  EXPECT_FALSE(read_bundle(file, folder.path() / "cache"));
}

TEST(WireFiles, Each_file_is_compressed_once_and_is_the_file) {
  TempFolder folder;
  Payload payload = payload_in(folder);
  WireFiles files(payload, folder.path() / "wire");
  for (const auto& [digest, path] : payload.content) {
    auto file = files.get(digest);
    ASSERT_TRUE(file) << file.error().what;
    std::string wire = *read_file(file->path);
    EXPECT_EQ(wire.size(), file->wire_size);
    std::string out(file->size, '\0');
    EXPECT_EQ(ZSTD_decompress(out.data(), out.size(), wire.data(), wire.size()), file->size);
    EXPECT_EQ(sha256_hex(out), digest);
  }
  EXPECT_FALSE(files.get(std::string(64, '0')));
}

}  // namespace
}  // namespace dsi

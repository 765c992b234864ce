#include "orchestrator/manifest.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace dsi {
namespace {

const std::string kDigest(64, 'a');

Manifest small() {
  Manifest manifest;
  manifest.files = {{"bin/tool", 0755, 3, kDigest}, {"lib/libds_x.so", 0644, 7, kDigest}};
  ManifestOp op;
  op.name = "x";
  op.capability = "op.x";
  op.library = "lib/libds_x.so";
  op.devices = {"cpu"};
  op.needs_symbols = {{"GLIBC", "2.34"}};
  manifest.ops = {op};
  manifest.built_with = {{"torch", "1.13.1"}};
  return manifest;
}

TEST(Manifest, Comes_back_from_its_text_unchanged) {
  auto read = Manifest::parse(small().to_json());
  ASSERT_TRUE(read) << read.error().what;
  EXPECT_EQ(read->files, small().files);
  EXPECT_EQ(read->ops, small().ops);
  EXPECT_EQ(read->to_json(), small().to_json());
}

TEST(Manifest, The_id_changes_with_any_byte_of_any_file) {
  Manifest other = small();
  other.files[1].sha256[5] = 'b';
  EXPECT_NE(release_id(other.to_json()), release_id(small().to_json()));
}

TEST(Manifest, Text_from_elsewhere_may_not_leave_the_release) {
  for (const std::string& path :
       std::vector<std::string>{"/etc/passwd", "../x", "lib/../../x", "", "lib//x", "./x", "lib/.",
                                "a\nb", std::string("a\0b", 3), std::string(2000, 'a')}) {
    nlohmann::json text = nlohmann::json::parse(small().to_json());
    text["files"][0]["path"] = path;
    EXPECT_FALSE(Manifest::parse(text.dump())) << path;
  }
}

TEST(Manifest, Modes_other_than_the_two_are_refused) {
  for (const char* mode : {"4755", "0777", "644", ""}) {
    nlohmann::json text = nlohmann::json::parse(small().to_json());
    text["files"][0]["mode"] = mode;
    EXPECT_FALSE(Manifest::parse(text.dump())) << mode;
  }
}

TEST(Manifest, A_file_listed_twice_or_out_of_order_is_refused) {
  nlohmann::json twice = nlohmann::json::parse(small().to_json());
  twice["files"][0]["path"] = "lib/libds_x.so";
  EXPECT_FALSE(Manifest::parse(twice.dump()));
  nlohmann::json unsorted = nlohmann::json::parse(small().to_json());
  std::swap(unsorted["files"][0], unsorted["files"][1]);
  EXPECT_FALSE(Manifest::parse(unsorted.dump()));
}

TEST(Manifest, An_op_without_its_library_is_refused_unless_it_was_not_built) {
  Manifest manifest = small();
  manifest.ops[0].library = "lib/elsewhere.so";
  EXPECT_FALSE(Manifest::parse(manifest.to_json()));
  manifest.ops[0].library.clear();
  manifest.ops[0].not_built = "no compiler";
  EXPECT_TRUE(Manifest::parse(manifest.to_json()));
}

TEST(Manifest, Another_schema_and_broken_text_say_so) {
  nlohmann::json text = nlohmann::json::parse(small().to_json());
  text["schema"] = 99;
  auto other = Manifest::parse(text.dump());
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().what.find("schema 99"), std::string::npos);
  EXPECT_FALSE(Manifest::parse("{"));
  EXPECT_FALSE(Manifest::parse(""));
  EXPECT_FALSE(Manifest::parse("[]"));
}

}  // namespace
}  // namespace dsi

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

const std::string kWheel = "wheels/deepspeed-0.19.6-cp311-cp311-linux_x86_64.whl";

Manifest with_package() {
  Manifest manifest;
  manifest.files = {{"bin/ds-package", 0755, 3, kDigest},
                    {kWheel, 0644, 7, kDigest},
                    {"wheels/hjson-3.1.0-py3-none-any.whl", 0644, 5, kDigest}};
  ManifestPackage package;
  package.name = "deepspeed";
  package.version = "0.19.6+cu130";
  package.wheel = kWheel;
  package.dependencies = {"wheels/hjson-3.1.0-py3-none-any.whl"};
  package.tags = {"cp311-cp311-linux_x86_64"};
  package.torch = "2.11.0+cu130";
  package.torch_cuda = "13.0";
  package.cpu_level = "x86-64-v3";
  package.needs_symbols = {{"GLIBC", "2.34"}};
  package.requires_dist = {"hjson", "tqdm; extra == \"all\""};
  package.modules = {
      {"deepspeed.ops.adam.cpu_adam_op", "cpu_adam", {{"GLIBC", "2.34"}}, {"libc.so.6"}, {}},
      {"deepspeed.ops.adam.fused_adam_op", "fused_adam", {}, {}, {"8.0", "9.0+PTX"}}};
  manifest.packages = {package};
  return manifest;
}

TEST(Manifest, Of_a_package_comes_back_from_its_text_unchanged) {
  auto read = Manifest::parse(with_package().to_json());
  ASSERT_TRUE(read) << read.error().what;
  EXPECT_EQ(read->packages, with_package().packages);
  EXPECT_EQ(read->to_json(), with_package().to_json());
}

TEST(Manifest, Of_ops_has_no_word_about_packages_so_that_its_id_stays) {
  EXPECT_EQ(small().to_json().find("packages"), std::string::npos);
}

TEST(Manifest, A_package_whose_words_could_harm_a_host_is_refused) {
  struct Change {
    const char* key;
    nlohmann::json value;
  };
  for (const Change& change : std::vector<Change>{
           {"name", "DeepSpeed"},
           {"name", "-rf"},
           {"name", "a/b"},
           {"name", "a b"},
           {"name", ""},
           {"version", ""},
           {"version", "1;reboot"},
           {"version", 1},
           {"wheel", "wheels/absent.whl"},
           {"wheel", "bin/ds-package"},
           {"dependencies", {"wheels/absent.whl"}},
           {"dependencies", {"wheels/hjson-3.1.0-py3-none-any.whl", kWheel}},
           {"tags", nlohmann::json::array()},
           {"tags", {"cp311"}},
           {"tags", {"cp311-cp311-linux x"}},
           {"modules", nullptr},
           {"modules", {{{"name", "deepspeed"}}}},
       }) {
    nlohmann::json text = nlohmann::json::parse(with_package().to_json());
    text["packages"][0][change.key] = change.value;
    EXPECT_FALSE(Manifest::parse(text.dump())) << change.key << " " << change.value;
  }
  for (const char* module : {"", ".x", "x.", "a..b", "a-b", "os; x", "1a", "a.1"}) {
    nlohmann::json text = nlohmann::json::parse(with_package().to_json());
    text["packages"][0]["modules"][0]["name"] = module;
    EXPECT_FALSE(Manifest::parse(text.dump())) << module;
  }
}

TEST(Manifest, Packages_and_modules_are_sorted_and_none_is_there_twice) {
  Manifest twice = with_package();
  twice.packages.push_back(twice.packages[0]);
  EXPECT_FALSE(Manifest::parse(twice.to_json()));
  Manifest unsorted = with_package();
  std::swap(unsorted.packages[0].modules[0], unsorted.packages[0].modules[1]);
  EXPECT_FALSE(Manifest::parse(unsorted.to_json()));
}

TEST(Manifest, Ops_and_packages_are_releases_of_their_own) {
  Manifest both = with_package();
  ManifestOp op;
  op.name = "x";
  op.capability = "op.x";
  op.not_built = "no compiler";
  both.ops = {op};
  auto read = Manifest::parse(both.to_json());
  ASSERT_FALSE(read);
  EXPECT_NE(read.error().what.find("both"), std::string::npos);
}

TEST(Manifest, A_package_name_is_compared_as_pip_compares_it) {
  EXPECT_EQ(normalised_package_name("DeepSpeed"), "deepspeed");
  EXPECT_EQ(normalised_package_name("Foo._-Bar"), "foo-bar");
  EXPECT_EQ(normalised_package_name("py_cpuinfo"), "py-cpuinfo");
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
